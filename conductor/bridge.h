/*
 * Between the conductor's front threads (HTTP, tokenizer, SSE) and its core thread (decisions,
 * node connections): bounded rings of messages, one pair per front. A message belongs to its
 * receiver once pushed. Neither side ever waits for the other.
 */
#ifndef BATON_CONDUCTOR_BRIDGE_H
#define BATON_CONDUCTOR_BRIDGE_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "base/buf.h"
#include "base/metrics.h"
#include "base/ring.h"
#include "engine/sample.h" /* SAMPLE_TOP_MAX */
#include "kv/key.h"

#define REQUEST_CHOICES_MAX 128
#define REQUEST_STOP_IDS_MAX 64

/* A validated request. Made by a front, read by both; freed by the core when it is over. */
struct request_spec {
	uint64_t id;       /* front index in the top 8 bits; unique in this conductor's life */
	char name[48];     /* "chatcmpl-..." as the client sees it */
	uint32_t model;    /* index into the conductor's models */
	uint32_t *prompt;  /* [prompt_count], owned */
	uint32_t prompt_count;
	uint32_t choice_count; /* n */
	uint32_t max_tokens;   /* resolved: never past the context */
	uint32_t min_tokens;
	float temperature, top_p, min_p;
	uint32_t top_k;
	uint64_t seed; /* drawn by the front when absent */
	bool want_logprobs;
	uint32_t top_logprobs;
	bool ignore_eos;
	uint32_t stop_ids[REQUEST_STOP_IDS_MAX];
	uint32_t stop_id_count;
	struct kv_key root_key;
	int32_t priority;
	uint64_t arrival_ns;   /* before tokenising */
	uint64_t deadline_ns;  /* for the whole request; 0: none */
};

void request_spec_free(struct request_spec *spec);

enum bridge_kind {
	/* front -> core */
	BRIDGE_SUBMIT,      /* spec (taken) */
	BRIDGE_CANCEL,      /* id: the client went; nothing more is wanted, no answer follows */
	BRIDGE_STOP_CHOICE, /* id, choice: a stop string matched; the front has finished the choice */
	BRIDGE_QUERY,       /* query, text, reply_to: an admin question, answered by BRIDGE_REPLY */
	/* core -> front */
	BRIDGE_TOKENS, /* id, choice, token_count...; in order of position, without gap or repeat */
	BRIDGE_FAILED, /* id, status...: the request ends with this error */
	BRIDGE_REPLY,  /* reply_to, status, text (JSON) */
};

enum bridge_query {
	QUERY_STATS,   /* GET /stats */
	QUERY_TRACE,   /* GET /debug/requests/ID: text is the client's request id */
	QUERY_DRAIN,   /* POST /drain?node=: text is the node's name */
	QUERY_UNDRAIN,
	QUERY_ROLE,    /* text "NODE ROLE" */
};

enum request_finish { FINISH_NONE, FINISH_STOP, FINISH_LENGTH };

struct bridge_token {
	uint32_t id;
	float logprob;
	uint32_t top_count;
	uint32_t *top_ids;     /* into the message's own memory */
	float *top_logprobs;
};

struct bridge_message {
	enum bridge_kind kind;
	uint64_t id; /* request */
	struct request_spec *spec;
	uint32_t choice;
	/* TOKENS */
	uint32_t token_count;
	struct bridge_token *tokens; /* owned; alternatives lie behind it in the same allocation */
	enum request_finish finish;  /* of this choice, with its last tokens */
	bool stopped_by_id;          /* finish by a stop id or end of generation ... */
	uint32_t stop_id;            /* ... this one; it is not among the tokens' text */
	uint32_t cached_tokens;      /* of the prompt; valid with a choice's first tokens */
	/* FAILED, REPLY */
	int status;                /* HTTP */
	const char *error_type;    /* static: "ServiceUnavailableError"... */
	uint32_t retry_after_s;    /* 0: no such header */
	enum bridge_query query;
	uint64_t reply_to;
	char *text;                /* owned; FAILED: the message for the client */
};

void bridge_message_free(struct bridge_message *message); /* NULL does nothing */

#define BRIDGE_FRONTS_MAX 16
#define BRIDGE_RING_SLOTS 65536
#define BRIDGE_MODELS_MAX 16

struct bridge_front {
	struct ring to_core, to_front;
	uv_async_t wake_front; /* on the front's loop; its data is the front */
};

/* Shared facts, written by one side, read by all. */
struct bridge {
	struct bridge_front fronts[BRIDGE_FRONTS_MAX];
	uint32_t front_count;
	uv_async_t wake_core;
	_Atomic bool ready;     /* every served model has a prefill and a decode place */
	_Atomic bool draining;  /* SIGTERM came: new requests are 503 */
	/* kv_format of each model's nodes, as they announce it; zeros before the first has joined.
	 * Word by word: a reader that meets a change gets a mix, which names no block at all. */
	_Atomic uint64_t kv_formats[BRIDGE_MODELS_MAX][4];
	_Atomic uint32_t requests_open; /* submitted and not over; the queue bound reads it */
	struct metrics *metrics;
};

/* The rings of @front_count fronts; the async handles are their loops' business.
 * Return: 0, or -1 when memory is short. */
int bridge_init(struct bridge *bridge, uint32_t front_count, struct metrics *metrics);
/* Both sides have stopped; messages still in the rings are freed. */
void bridge_fini(struct bridge *bridge);

void bridge_set_kv_format(struct bridge *bridge, uint32_t model, const uint8_t format[32]);
void bridge_kv_format(struct bridge *bridge, uint32_t model, uint8_t ret_format[32]);

/* Front side. false: the ring is full (answer 503); the message stays the caller's. */
bool bridge_to_core(struct bridge *bridge, uint32_t front, struct bridge_message *message);

#endif
