#include "conductor/bridge.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"

void request_spec_free(struct request_spec *spec)
{
	if (!spec)
		return;
	free(spec->prompt);
	free(spec);
}

void bridge_message_free(struct bridge_message *message)
{
	if (!message)
		return;
	request_spec_free(message->spec);
	free(message->tokens);
	free(message->text);
	free(message);
}

int bridge_init(struct bridge *bridge, uint32_t front_count, struct metrics *metrics)
{
	CHECK(front_count >= 1 && front_count <= BRIDGE_FRONTS_MAX);
	bridge->metrics = metrics;
	bridge->front_count = 0;
	for (uint32_t i = 0; i < front_count; i++) {
		struct bridge_front *front = &bridge->fronts[i];
		if (ring_init(&front->to_core, BRIDGE_RING_SLOTS))
			goto failed;
		if (ring_init(&front->to_front, BRIDGE_RING_SLOTS)) {
			ring_fini(&front->to_core);
			goto failed;
		}
		bridge->front_count++;
	}
	return 0;
failed:
	bridge_fini(bridge);
	return -1;
}

static void ring_empty(struct ring *ring)
{
	struct bridge_message *message;
	while ((message = ring_pop(ring)))
		bridge_message_free(message);
	ring_fini(ring);
}

void bridge_fini(struct bridge *bridge)
{
	for (uint32_t i = 0; i < bridge->front_count; i++) {
		ring_empty(&bridge->fronts[i].to_core);
		ring_empty(&bridge->fronts[i].to_front);
	}
	bridge->front_count = 0;
}

void bridge_set_kv_format(struct bridge *bridge, uint32_t model, const uint8_t format[32])
{
	uint64_t words[4];
	CHECK(model < BRIDGE_MODELS_MAX);
	memcpy(words, format, sizeof words);
	for (uint32_t i = 0; i < ARRAY_COUNT(words); i++)
		atomic_store_explicit(&bridge->kv_formats[model][i], words[i], memory_order_relaxed);
}

void bridge_kv_format(struct bridge *bridge, uint32_t model, uint8_t ret_format[32])
{
	uint64_t words[4];
	CHECK(model < BRIDGE_MODELS_MAX);
	for (uint32_t i = 0; i < ARRAY_COUNT(words); i++)
		words[i] = atomic_load_explicit(&bridge->kv_formats[model][i], memory_order_relaxed);
	memcpy(ret_format, words, sizeof words);
}

bool bridge_to_core(struct bridge *bridge, uint32_t front, struct bridge_message *message)
{
	CHECK(front < bridge->front_count);
	if (!ring_push(&bridge->fronts[front].to_core, message))
		return false;
	uv_async_send(&bridge->wake_core);
	return true;
}
