/* What the files of a front share. Everything here belongs to the front's own thread. */
#ifndef BATON_CONDUCTOR_FRONT_PRIVATE_H
#define BATON_CONDUCTOR_FRONT_PRIVATE_H

#include <stdatomic.h>

#include "base/list.h"
#include "base/map.h"
#include "conductor/api_params.h"
#include "conductor/front.h"
#include "conductor/stop.h"

/* Requests of one front at a time, all prompts counted. */
#define FRONT_PARTS_MAX 65536
#define FRONT_QUERIES_MAX 64
/* Prompts of one HTTP request, and their choices together. */
#define API_PROMPTS_MAX 1024
#define API_CHOICES_MAX 1024
/* A stream is rendered while less than this waits for the socket. */
#define API_QUEUED_MAX (64u << 10)
/* Tokens that one chunk carries at most when a reader has fallen behind. */
#define API_CHUNK_TOKENS 256

struct front_metrics {
	struct metric *ttft, *itl, *e2e, *tpot, *prompt_tokens, *generation_tokens;
	struct metric *cached_tokens, *decode_time;
	struct metric *request_prompt, *request_generation, *request_max_tokens, *request_n;
	struct metric *request_max_generation;
	struct metric *success_stop, *success_length, *success_abort, *success_error;
};

struct admin_query {
	uint64_t reply_to; /* 0: free */
	struct http_exchange *exchange;
};

/* Who asks, as its key says. All texts are the keyring's. */
struct api_caller {
	const char *tenant_salt; /* "" of the tenant of --api-key, and without keys */
	struct key_use *use;	 /* NULL: no rates */
	int32_t priority;
	bool admin;
};

struct front {
	struct fronts *fronts;
	uint32_t index;
	uv_loop_t loop;
	uv_thread_t thread;
	uv_async_t command; /* drain, stop */
	struct http_server *client, *admin;
	struct map parts;     /* id -> struct api_part */
	struct list requests; /* all */
	struct list dirty;    /* have something to render */
	uint64_t ids;
	struct bridge_message **unsent; /* the ring was full: sent before anything else */
	uint32_t unsent_count, unsent_capacity;
	uv_timer_t unsent_timer;
	struct admin_query queries[FRONT_QUERIES_MAX];
	uint64_t query_ids;
	struct buf scratch; /* pieces of tokens */
	struct buf out;     /* what is being rendered */
	const char *handler, *method; /* of the answer in the making, for http_requests */
	uint64_t begin_ns;
	struct api_caller caller; /* of the request being routed; valid until the loop goes on */
	bool drained, stopped;
};

struct fronts {
	const struct fronts_config *config;
	struct bridge *bridge;
	struct front fronts[BRIDGE_FRONTS_MAX];
	uint32_t count;
	_Atomic bool drain, abort, stop;
	_Atomic uint32_t open; /* requests of all fronts */
	struct front_metrics *metrics; /* [model_count] */
	struct metric_family *http_requests, *http_seconds;
};

enum choice_reason { REASON_NONE, REASON_ID, REASON_TEXT };

struct api_choice {
	struct stop_state stop;
	/* Tokens that came and are not rendered yet: 4 bytes each, logprobs only when asked. */
	uint32_t *ids;
	float *logprobs;
	uint32_t *top_ids; /* [capacity * top_logprobs] */
	float *top_logprobs;
	uint8_t *top_counts;
	uint32_t pending_first, pending_count, capacity;
	uint32_t rendered_tokens;
	uint32_t completion_tokens;
	struct buf tail;   /* rendered bytes that may not leave yet */
	struct buf log;    /* logprobs of tokens rendered since the last chunk */
	struct buf tops;   /* ... and, for completions, their three other lists */
	struct buf values, offsets;
	struct buf token_ids;
	uint64_t emitted;  /* bytes of text that have left */
	uint64_t text_offset; /* characters, for completion logprobs */
	uint64_t last_ns;
	enum request_finish finish;
	enum choice_reason reason;
	uint32_t stop_id;
	bool ends_with_stop_id; /* the last token has no text */
	bool done;       /* no more tokens are taken */
	bool role_sent, finish_sent;
};

/* What http_user() of a client's exchange points to. */
struct api_owner {
	void (*gone)(struct api_owner *owner); /* the client went */
};

/*
 * Reading a body: pure work that a large body makes long. Small ones run in place, large ones on
 * libuv's pool, with a copy of the body, so that the front's other clients do not wait.
 */
struct api_job {
	uv_work_t work;
	const char *body;
	size_t body_bytes;
	char *copy;
	void (*run)(struct api_job *job);  /* any thread */
	void (*done)(struct api_job *job); /* the front's; frees what the job is part of */
};

/* One prompt: one request to the core. */
struct api_part {
	struct api_request *request;
	uint64_t id;
	uint32_t index;
	uint32_t prompt_count, cached_tokens;
	uint32_t *prompt; /* kept only for return_token_ids */
	struct api_choice *choices; /* [n] */
	uint32_t done_count;
	bool started; /* its first tokens came */
	bool over;    /* the core has nothing more to say */
	bool counted; /* in the map */
};

/* One HTTP request. */
struct api_request {
	struct api_owner owner;
	struct list link, dirty;
	struct front *front;
	struct http_exchange *exchange;
	struct begin_job *begin; /* while the body is being read */
	bool submitted;
	struct front_model *model;
	struct front_metrics *metrics;
	enum api_kind kind;
	char name[48];
	uint64_t created_s, arrival_ns, first_ns, last_ns;
	struct stop_set stops;
	struct buf head; /* the JSON that every chunk begins with */
	struct api_part *parts;
	uint32_t part_count, choice_count, done_count; /* choices, over all parts */
	uint32_t n, top_logprobs, min_tokens;
	uint32_t max_tokens; /* the largest of the parts, for metrics */
	bool stream, streaming, include_usage, continuous_usage;
	bool want_logprobs, include_stop, skip_special, return_token_ids;
	uint32_t user_stop_ids[REQUEST_STOP_IDS_MAX];
	uint32_t user_stop_id_count;
	/* Of the caller: the key may go while the request lasts. */
	char tenant_salt[65];
	struct key_use *use;
	int32_t key_priority;
};

/* A parsed prompt. */
struct api_prompt {
	struct token_ids ids;
};

/* api_prompt.c: @ret_prompts: [API_PROMPTS_MAX], zeroed; freed by the caller whatever came. */
int api_prompts_parse(const struct front_model *model, const json_t *body,
		      const struct api_params *params, struct api_prompt ret_prompts[],
		      uint32_t *ret_count, struct api_error *error);
/* Conversation into ids, as chat completions and /tokenize do it. */
int api_chat_tokenize(const struct front_model *model, const json_t *body,
		      const struct api_params *params, struct token_ids *ids,
		      struct api_error *error);
int api_model_find(const struct fronts_config *config, const json_t *body,
		   struct front_model **ret_model, struct api_error *error);

/* api_job.c: may call @done before it returns. */
void api_job_start(struct api_job *job, struct front *front, const struct http_request *http,
		   void (*run)(struct api_job *), void (*done)(struct api_job *));

/* front.c: to the core, now or as soon as the ring has room; never lost. Takes the message. */
void front_tell(struct front *front, struct bridge_message *message);

/* api_begin.c */
void api_submit(struct front *front, struct http_exchange *exchange,
		const struct http_request *http, enum api_kind kind);
void api__begin_forget(struct begin_job *begin);
int api__overloaded(struct api_error *error, const char *what);

/* api_request.c */
void api__part_over(struct api_part *part);
void api__part_cancel(struct api_part *part);
void api__request_free(struct api_request *request);
void api__answering(const struct api_request *request);
void api_tokens(struct front *front, struct bridge_message *message);
void api_failed(struct front *front, const struct bridge_message *message);
void api_gone(struct api_request *request);
/* Renders what it can and ends what has ended; may free the request. */
void api_progress(struct api_request *request);
void api_abort_all(struct front *front);

/* api_render.c */
void api_render_head(struct api_request *request);
/* Bytes of the token at @position of a choice's output, as the text has them. */
void api_piece(const struct api_request *request, const struct api_choice *choice,
	       uint64_t position, uint32_t id, bool is_stop, struct buf *out);
void api_render_whole(struct api_request *request, struct buf *out);
/* Appends events for what is pending. Return: true when all of the request is out. */
bool api_render_stream(struct api_request *request, struct buf *out);
void api_render_error_event(const struct api_error *error, struct buf *out);

/* api_routes.c */
void api_route(struct front *front, struct http_exchange *exchange,
	       const struct http_request *http);
void api_respond_error(struct front *front, struct http_exchange *exchange,
		       const struct api_error *error);
void api_respond(struct front *front, struct http_exchange *exchange, int status,
		 const char *content_type, const struct buf *body);
/* @handler, @method: static. What the next answer is counted as. */
void api_answering(struct front *front, const char *handler, const char *method, uint64_t begin_ns);
/* Counts an answer that was streamed, or whose client went (499). */
void api_count_http(struct front *front, struct http_exchange *exchange, int status);

/* api_keys.c: fills front->caller. Return: 0, or -1 with @error filled: 401, or 503 when no table of
 * keys was ever read. */
int api_authenticate(struct front *front, struct http_exchange *exchange, struct api_error *error);
/* The same on the admin listener, where only some keys open. */
int api_authenticate_admin(struct front *front, struct http_exchange *exchange,
			   struct api_error *error);
/* The caller's rates. Return: 0, or -1 with @error filled: 429. */
int api_admit_caller(struct front *front, struct api_error *error);

/* api_admin.c */
void admin_route(struct front *front, struct http_exchange *exchange,
		 const struct http_request *http);
void admin_gone(struct front *front, struct http_exchange *exchange);
void admin_reply(struct front *front, const struct bridge_message *message);

/* front_metrics.c */
int front_metrics_init(struct fronts *fronts);
void front_metrics_fini(struct fronts *fronts);

#endif
