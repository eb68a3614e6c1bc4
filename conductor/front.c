#include "conductor/front.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <netdb.h>
#include <stdio.h>
#include <unistd.h>

#include "base/check.h"
#include "base/log.h"
#include "conductor/front_private.h"

#define UNSENT_RETRY_MS 5

/* ---- to the core ---- */

static void unsent_flush(struct front *front)
{
	struct bridge *bridge = front->fronts->bridge;
	uint32_t sent = 0;
	if (!front->unsent_count)
		return;
	while (sent < front->unsent_count &&
	       bridge_to_core(bridge, front->index, front->unsent[sent]))
		sent++;
	front->unsent_count -= sent;
	memmove(front->unsent, front->unsent + sent, front->unsent_count * sizeof *front->unsent);
	if (!front->unsent_count)
		uv_timer_stop(&front->unsent_timer);
}

static void on_unsent_timer(uv_timer_t *timer)
{
	unsent_flush(timer->data);
}

/* Cancels and stops are few: at most one for each choice that was ever submitted, and each frees
 * work at the nodes, so they wait in a list instead of being dropped. */
void front_tell(struct front *front, struct bridge_message *message)
{
	if (!front->unsent_count && bridge_to_core(front->fronts->bridge, front->index, message))
		return;
	if (front->unsent_count == front->unsent_capacity) {
		uint32_t capacity = MAX(64u, front->unsent_capacity * 2);
		void *grown = realloc(front->unsent, capacity * sizeof *front->unsent);
		if (!grown) {
			log_error("out of memory: a message to the core is lost");
			bridge_message_free(message);
			return;
		}
		front->unsent = grown;
		front->unsent_capacity = capacity;
	}
	front->unsent[front->unsent_count++] = message;
	uv_timer_start(&front->unsent_timer, on_unsent_timer, UNSENT_RETRY_MS, UNSENT_RETRY_MS);
}

/* ---- from the core ---- */

static void on_wake(uv_async_t *async)
{
	struct front *front = async->data;
	struct ring *ring = &front->fronts->bridge->fronts[front->index].to_front;
	struct bridge_message *message;
	while ((message = ring_pop(ring))) {
		switch (message->kind) {
		case BRIDGE_TOKENS: api_tokens(front, message); break;
		case BRIDGE_FAILED: api_failed(front, message); break;
		case BRIDGE_REPLY: admin_reply(front, message); break;
		default: break;
		}
		bridge_message_free(message);
	}
	/* What came together leaves together: one write for each request. */
	while (!list_empty(&front->dirty))
		api_progress(list_entry(front->dirty.next, struct api_request, dirty));
	unsent_flush(front);
}

/* ---- HTTP ---- */

static void on_client_request(struct http_exchange *exchange, const struct http_request *http,
			      void *context)
{
	api_route(context, exchange, http);
}

static void on_client_gone(struct http_exchange *exchange, void *context)
{
	struct api_owner *owner = http_user(exchange);
	if (owner)
		owner->gone(owner);
}

static void on_client_writable(struct http_exchange *exchange, void *context)
{
	/* Only completions stream. */
	struct api_owner *owner = http_user(exchange);
	if (owner)
		api_progress(container_of(owner, struct api_request, owner));
}

static void on_admin_request(struct http_exchange *exchange, const struct http_request *http,
			     void *context)
{
	admin_route(context, exchange, http);
}

static void on_admin_gone(struct http_exchange *exchange, void *context)
{
	admin_gone(context, exchange);
}

static const struct http_callbacks client_callbacks = { on_client_request, on_client_gone,
							on_client_writable };
static const struct http_callbacks admin_callbacks = { on_admin_request, on_admin_gone, NULL };

/* ---- threads ---- */

static void front_drain(struct front *front)
{
	if (front->drained)
		return;
	front->drained = true;
	http_stop_accepting(front->client);
}

static void front_end(struct front *front)
{
	if (front->stopped)
		return;
	front->stopped = true;
	api_abort_all(front);
	unsent_flush(front);
	http_close(front->client);
	http_close(front->admin);
	front->client = front->admin = NULL;
	uv_close((uv_handle_t *)&front->command, NULL);
	uv_close((uv_handle_t *)&front->unsent_timer, NULL);
	uv_close((uv_handle_t *)&front->fronts->bridge->fronts[front->index].wake_front, NULL);
}

static void on_command(uv_async_t *async)
{
	struct front *front = async->data;
	if (atomic_load(&front->fronts->drain))
		front_drain(front);
	if (atomic_load(&front->fronts->abort)) {
		api_abort_all(front);
		unsent_flush(front);
	}
	if (atomic_load(&front->fronts->stop))
		front_end(front);
}

static void front_main(void *argument)
{
	struct front *front = argument;
	uv_run(&front->loop, UV_RUN_DEFAULT);
}

static int front_fini(struct front *front)
{
	int result = 0;
	if (front->parts.count || !list_empty(&front->requests)) {
		log_error("front %u leaves %u prompts", front->index, front->parts.count);
		result = -EBUSY;
	}
	for (uint32_t i = 0; i < front->unsent_count; i++)
		bridge_message_free(front->unsent[i]);
	free(front->unsent);
	map_fini(&front->parts);
	buf_fini(&front->scratch);
	buf_fini(&front->out);
	if (uv_loop_close(&front->loop)) {
		log_error("front %u leaves handles open", front->index);
		result = -EBUSY;
	}
	return result;
}

static int front_init(struct fronts *fronts, uint32_t index)
{
	struct front *front = &fronts->fronts[index];
	struct bridge_front *link = &fronts->bridge->fronts[index];
	front->fronts = fronts;
	front->index = index;
	list_init(&front->requests);
	list_init(&front->dirty);
	buf_init(&front->scratch, 0);
	buf_init(&front->out, 0);
	int result = uv_loop_init(&front->loop);
	if (result)
		return result;
	if (map_init(&front->parts, FRONT_PARTS_MAX)) {
		uv_loop_close(&front->loop);
		return -ENOMEM;
	}
	uv_async_init(&front->loop, &front->command, on_command);
	uv_async_init(&front->loop, &link->wake_front, on_wake);
	uv_timer_init(&front->loop, &front->unsent_timer);
	front->command.data = link->wake_front.data = front->unsent_timer.data = front;
	return 0;
}

/* SO_REUSEPORT would let two conductors share a port and neither would say so: bind it once
 * without. */
static int port_is_free(const char *host, uint16_t port)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE };
	struct addrinfo *found = NULL;
	char service[8];
	int one = 1, result = 0;
	snprintf(service, sizeof service, "%u", port);
	if (getaddrinfo(host && *host ? host : NULL, service, &hints, &found) || !found)
		return -EADDRNOTAVAIL;
	int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) ||
	    bind(fd, found->ai_addr, found->ai_addrlen) || listen(fd, 1))
		result = -errno;
	if (fd >= 0)
		close(fd);
	freeaddrinfo(found);
	return result;
}

static int front_listen(struct front *front, uint16_t *port, uint16_t *ret_admin_port)
{
	const struct fronts_config *config = front->fronts->config;
	int result = http_listen(&front->loop, config->host, *port, true, &config->limits,
				 &client_callbacks, front, &front->client, port);
	if (result) {
		log_error("cannot listen on %s port %u: %s", config->host, *port, strerror(-result));
		return result;
	}
	if (front->index)
		return 0;
	result = http_listen(&front->loop, config->admin_host, config->admin_port, false,
			     &config->limits, &admin_callbacks, front, &front->admin,
			     ret_admin_port);
	if (result)
		log_error("cannot listen on %s port %u (admin): %s", config->admin_host,
			  config->admin_port, strerror(-result));
	return result;
}

/* The longest token of the vocabulary: what the cheap length gate divides by. */
static void measure_pieces(struct front_model *model)
{
	const struct tokenizer *tokenizer = model_tokenizer(model->model);
	struct buf piece;
	buf_init(&piece, 0);
	model->piece_bytes_max = 1;
	for (uint32_t id = 0; id < tokenizer_vocab_count(tokenizer); id++) {
		buf_clear(&piece);
		tokenizer_piece(tokenizer, id, true, &piece);
		model->piece_bytes_max = MAX(model->piece_bytes_max, (uint32_t)piece.bytes);
	}
	buf_fini(&piece);
}

int fronts_start(const struct fronts_config *config, struct bridge *bridge,
		 struct fronts **ret_fronts, uint16_t *ret_port, uint16_t *ret_admin_port)
{
	struct fronts *fronts = calloc(1, sizeof *fronts);
	uint32_t inited = 0;
	uint16_t port = config->port;
	int result = -ENOMEM;
	if (!fronts)
		return -ENOMEM;
	fronts->config = config;
	fronts->bridge = bridge;
	fronts->count = config->thread_count;
	CHECK(fronts->count >= 1 && fronts->count <= bridge->front_count);
	for (uint32_t i = 0; i < config->model_count; i++)
		measure_pieces(&config->models[i]);
	if (front_metrics_init(fronts))
		goto failed;
	if (port && (result = port_is_free(config->host, port))) {
		log_error("cannot listen on %s port %u: %s", config->host, port, strerror(-result));
		goto failed;
	}
	for (; inited < fronts->count; inited++) {
		result = front_init(fronts, inited);
		if (result)
			goto failed;
		result = front_listen(&fronts->fronts[inited], &port, ret_admin_port);
		if (result) {
			inited++;
			goto failed;
		}
	}
	for (uint32_t i = 0; i < fronts->count; i++)
		if (uv_thread_create(&fronts->fronts[i].thread, front_main, &fronts->fronts[i]))
			abort(); /* out of threads at start: nothing sensible is left */
	*ret_fronts = fronts;
	*ret_port = port;
	return 0;
failed:
	for (uint32_t i = 0; i < inited; i++) {
		front_end(&fronts->fronts[i]);
		uv_run(&fronts->fronts[i].loop, UV_RUN_DEFAULT);
		(void)front_fini(&fronts->fronts[i]);
	}
	front_metrics_fini(fronts);
	free(fronts);
	return result;
}

static void command_all(struct fronts *fronts)
{
	for (uint32_t i = 0; i < fronts->count; i++)
		uv_async_send(&fronts->fronts[i].command);
}

void fronts_drain(struct fronts *fronts)
{
	atomic_store(&fronts->drain, true);
	command_all(fronts);
}

uint32_t fronts_open(const struct fronts *fronts)
{
	return atomic_load(&fronts->open);
}

void fronts_abort(struct fronts *fronts)
{
	atomic_store(&fronts->abort, true);
	command_all(fronts);
}

int fronts_stop(struct fronts *fronts)
{
	int result = 0;
	if (!fronts)
		return 0;
	atomic_store(&fronts->stop, true);
	command_all(fronts);
	for (uint32_t i = 0; i < fronts->count; i++)
		uv_thread_join(&fronts->fronts[i].thread);
	for (uint32_t i = 0; i < fronts->count; i++)
		if (front_fini(&fronts->fronts[i]))
			result = -EBUSY;
	front_metrics_fini(fronts);
	free(fronts);
	return result;
}
