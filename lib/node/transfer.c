/*
 * Between the cores' blocks and layers and lib/xfer's ranges and slices. Range i of a transfer is
 * (block base + i / layers, layer i % layers) of the page table; on both sides the range's place
 * is arena offset block * block_bytes + slice_offset(layer).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "base/rand.h"
#include "node/private.h"

/* Names a ref in a map; collisions are caught by comparing the whole ref. */
static uint64_t ref_hash(const struct node_ref *ref)
{
	uint64_t state = ref->conductor ^ ref->request * UINT64_C(0x9e3779b97f4a7c15) ^ (uint64_t)ref->epoch << 32;
	return rand_next(&state);
}

static struct outgoing *outgoing_of(struct node *node, node_handle handle)
{
	uint32_t index = node_handle_index(handle);
	if (index >= node->outgoing_count || node->outgoing[index].handle.v != handle.v)
		return NULL;
	return &node->outgoing[index];
}

static void outgoing_drop(struct node *node, struct outgoing *out)
{
	map_remove(&node->outgoing_refs, ref_hash(&out->ref));
	xfer_peer_unref(out->peer);
	*out = (struct outgoing){ 0 };
}

void node__transfer_reserve(struct node *node, const struct node_action *action, struct xfer_peer *peer)
{
	uint32_t index = node_handle_index(action->handle);
	CHECK(index < node->outgoing_count);
	struct outgoing *out = &node->outgoing[index];
	if (out->handle.v)
		outgoing_drop(node, out);
	*out = (struct outgoing){ .handle = action->handle, .ref = action->ref, .peer = peer };
	(void)map_put(&node->outgoing_refs, ref_hash(&action->ref), index);
}

bool node__transfer_answer(struct node *node, const struct node_event *answer)
{
	uint64_t index;
	if (!map_get(&node->outgoing_refs, ref_hash(&answer->answer.ref), &index))
		return false;
	struct outgoing *out = &node->outgoing[index];
	if (!node_ref_equal(&out->ref, &answer->answer.ref) || answer->answer.ticket_bytes > sizeof out->ticket)
		return false;
	out->ticket_bytes = answer->answer.ticket_bytes;
	if (out->ticket_bytes)
		memcpy(out->ticket, answer->answer.ticket, out->ticket_bytes);
	return true;
}

/* ---- sending ---- */

static struct xfer_slice slice_make(const struct node *node, const kv_block_id blocks[], uint32_t base,
				    uint32_t index)
{
	uint32_t layers = kv_shape_layer_count(&node->shape), layer = index % layers;
	kv_block_id block = blocks[base + index / layers];
	return (struct xfer_slice){
		.index = index,
		.offset = block.v * node->arena.block_bytes + kv_shape_slice_offset(&node->shape, layer),
		.bytes = kv_shape_slice_bytes(&node->shape, layer),
	};
}

static void slice_failed(struct node *node, node_handle handle, uint32_t index, int status)
{
	node_defer(node, &(struct node_event){ .kind = NODE_SLICE_SENT,
					       .slice = { .handle = handle, .index = index, .status = status } });
}

static void slice_keep(struct node *node, node_handle handle, const struct xfer_slice *slice)
{
	if (node->pending_count == node->pending_capacity) {
		uint32_t capacity = MAX(256u, node->pending_capacity * 2);
		struct pending_slice *pending = realloc(node->pending, capacity * sizeof *pending);
		if (!pending) {
			slice_failed(node, handle, slice->index, -ENOMEM);
			return;
		}
		node->pending = pending;
		node->pending_capacity = capacity;
	}
	node->pending[node->pending_count++] = (struct pending_slice){ handle, *slice };
}

/* Return: 0, -EAGAIN when it must wait. Any other failure is told as the slice's outcome. */
static int slice_send(struct node *node, node_handle handle, const struct xfer_slice *slice)
{
	struct outgoing *out = outgoing_of(node, handle);
	int status = out && out->ticket_bytes
			     ? xfer_send(out->peer, out->ticket, out->ticket_bytes, slice, 1, handle.v)
			     : -ECANCELED;
	if (status == -EAGAIN)
		return status;
	if (status < 0)
		slice_failed(node, handle, slice->index, status);
	return 0;
}

static void slice_submit(struct node *node, node_handle handle, const struct xfer_slice *slice)
{
	/* Those that wait go first, or a full queue would starve them. */
	if (node->pending_count || slice_send(node, handle, slice) == -EAGAIN)
		slice_keep(node, handle, slice);
}

static void pending_retry(struct node *node)
{
	uint32_t done = 0;
	while (done < node->pending_count &&
	       slice_send(node, node->pending[done].handle, &node->pending[done].slice) == 0)
		done++;
	node->pending_count -= done;
	if (done && node->pending_count)
		memmove(node->pending, node->pending + done, node->pending_count * sizeof *node->pending);
}

void node__transfer_send(struct node *node, node_handle handle, const kv_block_id blocks[],
			 uint32_t first, uint32_t end, uint32_t base, uint32_t layer_first,
			 uint32_t layer_end)
{
	uint32_t layers = kv_shape_layer_count(&node->shape);
	for (uint32_t layer = layer_first; layer < layer_end; layer++) {
		for (uint32_t block = first; block < end; block++) {
			struct xfer_slice slice =
				slice_make(node, blocks, base, (block - base) * layers + layer);
			slice_submit(node, handle, &slice);
		}
	}
}

void node__transfer_resend(struct node *node, const struct node_action *action)
{
	struct xfer_slice slice =
		slice_make(node, action->resend.blocks, action->resend.base, action->resend.index);
	log_warning("request %llu: slice %u failed its checksum at the receiver, sending it again",
		    (unsigned long long)action->ref.request, slice.index);
	slice_submit(node, action->handle, &slice);
}

void node__transfer_cancel(struct node *node, node_handle handle)
{
	struct outgoing *out = outgoing_of(node, handle);
	uint32_t kept = 0;
	for (uint32_t i = 0; i < node->pending_count; i++) {
		if (node->pending[i].handle.v == handle.v)
			slice_failed(node, handle, node->pending[i].slice.index, -ECANCELED);
		else
			node->pending[kept++] = node->pending[i];
	}
	node->pending_count = kept;
	if (out)
		xfer_cancel(out->peer, handle.v);
}

/* ---- receiving ---- */

static uint64_t expect_pack(xfer_expect_id id)
{
	return (uint64_t)id.generation << 32 | id.index;
}

static xfer_expect_id expect_unpack(uint64_t value)
{
	return (xfer_expect_id){ .index = (uint32_t)value, .generation = (uint32_t)(value >> 32) };
}

int node__transfer_grant(struct node *node, const struct node_action *action,
			 uint8_t ret_ticket[XFER_TICKET_BYTES_MAX], size_t *ret_ticket_bytes)
{
	uint32_t layers = kv_shape_layer_count(&node->shape);
	uint32_t count = (action->grant.block_count - action->grant.cached_blocks) * layers;
	xfer_expect_id id;

	struct xfer_range *ranges = malloc(count * sizeof *ranges);
	if (!ranges)
		return -ENOMEM;
	for (uint32_t i = 0; i < count; i++) {
		struct xfer_slice slice =
			slice_make(node, action->grant.blocks, action->grant.cached_blocks, i);
		ranges[i] = (struct xfer_range){ slice.offset, slice.bytes };
	}
	int status = xfer_expect(node->xfer, ranges, count, action->handle.v, &id, ret_ticket, ret_ticket_bytes);
	free(ranges);
	if (status < 0)
		return status;
	status = map_put(&node->expects, action->handle.v, expect_pack(id));
	CHECK(status == 0); /* a handle is granted once, and the map has room for every expect */
	return 0;
}

void node__transfer_revoke(struct node *node, node_handle handle)
{
	uint64_t id;
	if (map_get(&node->expects, handle.v, &id))
		xfer_revoke(node->xfer, expect_unpack(id));
}

void node__transfer_forget(struct node *node, node_handle handle)
{
	struct outgoing *out = outgoing_of(node, handle);
	if (out)
		outgoing_drop(node, out);
	(void)map_remove(&node->expects, handle.v);
}

uint32_t node__transfer_kind(const struct node *node)
{
	struct xfer_stats stats;
	uint32_t best = 0;
	xfer_stats(node->xfer, &stats);
	for (uint32_t i = 1; i < ARRAY_COUNT(stats.landed_bytes); i++)
		if (stats.landed_bytes[i] > stats.landed_bytes[best])
			best = i;
	return best;
}

/* ---- events ---- */

static void transfer_event(struct node *node, const struct xfer_event *in)
{
	node_handle handle = { in->user };
	struct node_event event = { .kind = NODE_EVENT_KIND_COUNT };

	switch (in->kind) {
	case XFER_LANDED:
		event.kind = NODE_SLICE_LANDED;
		break;
	case XFER_LANDED_ALL:
		event.kind = NODE_LANDED_ALL;
		(void)map_remove(&node->expects, in->user);
		break;
	case XFER_REVOKED:
		event.kind = NODE_REVOKED;
		(void)map_remove(&node->expects, in->user);
		break;
	case XFER_SENT:
		event.kind = NODE_SLICE_SENT;
		event.slice.handle = handle;
		event.slice.index = in->index;
		event.slice.status = in->status;
		node_event(node, &event);
		return;
	case XFER_CORRUPT:
		log_warning("a slice of %u bytes arrived with a wrong checksum and was refused", in->bytes);
		return;
	case XFER_BROKEN:
		return; /* the sender resends or the grant's deadline comes */
	}
	event.landed.handle = handle;
	event.landed.bytes = in->bytes;
	node_event(node, &event);
}

static void transfer_on_wake(uv_async_t *async)
{
	struct node *node = async->data;
	struct xfer_event event;
	node_notice_sleep(node);
	while (xfer_poll(node->xfer, &event))
		transfer_event(node, &event);
	pending_retry(node);
	node_pump(node);
}

static void transfer_notify(void *context)
{
	uv_async_send(context);
}

int node__transfer_open(struct node *node)
{
	const struct node_config *config = &node->config;
	char error[256] = "";
	struct xfer_config xfer = {
		.transport = (enum xfer_transport)config->transport,
		.host = config->peer_host,
		.port = (uint16_t)config->transfer_port,
		.slab = { node->arena.memfd, node->arena.base, node->arena.bytes },
		.streams_per_peer = (uint32_t)config->transfer_streams,
		.expects_max = (uint32_t)config->max_num_queued,
		.notify = transfer_notify,
		.notify_context = &node->xfer_wake,
		.faults = { (uint32_t)config->fault_flip_every, (uint32_t)config->fault_delay_us,
			    (uint32_t)config->fault_drop_every },
	};
	memcpy(xfer.cluster_key, node->key.bytes, sizeof xfer.cluster_key);
	node->outgoing_count = (uint32_t)config->max_num_queued;
	node->outgoing = calloc(node->outgoing_count, sizeof *node->outgoing);
	if (!node->outgoing || map_init(&node->outgoing_refs, node->outgoing_count) < 0 ||
	    map_init(&node->expects, xfer.expects_max) < 0)
		return -ENOMEM;
	CHECK(uv_async_init(&node->loop, &node->xfer_wake, transfer_on_wake) == 0);
	node->xfer_wake.data = node;
	int status = xfer_open(&xfer, &node->xfer, error, sizeof error);
	if (status < 0)
		log_error("the data plane did not open: %s", error[0] ? error : err_text(status));
	return status;
}

void node__transfer_close(struct node *node)
{
	for (uint32_t i = 0; node->outgoing && i < node->outgoing_count; i++)
		if (node->outgoing[i].handle.v)
			outgoing_drop(node, &node->outgoing[i]);
	if (node->xfer) {
		xfer_close(node->xfer);
		node->xfer = NULL;
	}
	if (node->xfer_wake.data)
		uv_close((uv_handle_t *)&node->xfer_wake, NULL);
	free(node->outgoing);
	map_fini(&node->outgoing_refs);
	map_fini(&node->expects);
	free(node->pending);
}
