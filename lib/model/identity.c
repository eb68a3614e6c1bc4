/*
 * What a model is called among nodes: the fingerprint and kv_format. Both are chains
 * d = SHA-256(d || piece): every piece goes in with its length, so no two models that differ
 * can run together into the same bytes, and nothing is allocated.
 */
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "model/model.h"
#include "model/private.h"

#define KV_FORMAT_VERSION 1
#define EDGE_BYTES ((size_t)4096)

struct digest {
	uint8_t v[32];
};

static void digest_add(struct digest *digest, const void *data, size_t bytes)
{
	uint64_t length = bytes;
	struct hash_piece pieces[] = {
		{ digest->v, sizeof(digest->v) },
		{ &length, sizeof(length) },
		{ data, bytes },
	};
	uint8_t next[32];
	hash_sha256(pieces, ARRAY_COUNT(pieces), next);
	memcpy(digest->v, next, sizeof(next));
}

static void digest_add_text(struct digest *digest, const char *text)
{
	digest_add(digest, text, strlen(text));
}

static void digest_add_u32(struct digest *digest, uint32_t value)
{
	digest_add(digest, &value, sizeof(value));
}

/* Without the name: a renamed file is the same model. */
static void digest_add_config(struct digest *digest, const struct model_config *c)
{
	const uint32_t words[] = {
		c->arch,       c->layer_count, c->embedding,	     c->head_count,
		c->head_dim,   c->feed_forward, c->kv_head_count,    c->vocab_count,
		c->rope_dim,   c->rope_interleaved, c->context_tokens, c->qkv_bias,
		c->qk_norm,    c->tied_embeddings, (uint32_t)c->bos_id, c->add_bos,
		c->add_eos,    c->eos_count,
	};
	digest_add(digest, words, sizeof(words));
	digest_add(digest, c->eos_ids, c->eos_count * sizeof(c->eos_ids[0]));
	const float reals[] = { c->norm_epsilon, c->rope_base };
	digest_add(digest, reals, sizeof(reals));
	if (c->rope_divisors)
		digest_add(digest, c->rope_divisors, c->rope_dim / 2 * sizeof(float));
}

/* A vocabulary has 1e5 pieces: they are gathered into 4 KiB pages before they are hashed. */
struct page {
	struct digest *digest;
	size_t used;
	char bytes[EDGE_BYTES];
};

static void page_add(struct page *page, const void *data, size_t bytes)
{
	const char *from = data;
	while (bytes) {
		size_t part = MIN(bytes, sizeof(page->bytes) - page->used);
		memcpy(page->bytes + page->used, from, part);
		page->used += part;
		from += part;
		bytes -= part;
		if (page->used == sizeof(page->bytes)) {
			digest_add(page->digest, page->bytes, page->used);
			page->used = 0;
		}
	}
}

static void page_add_text(struct page *page, struct text text)
{
	uint32_t bytes = (uint32_t)text.bytes;
	page_add(page, &bytes, sizeof(bytes));
	page_add(page, text.data, text.bytes);
}

static void digest_add_vocab(struct digest *digest, const struct vocab *v)
{
	struct page page = { .digest = digest };
	const uint32_t words[] = {
		v->kind,	   v->token_count,   v->merge_count,	 v->pattern_count,
		v->ignore_merges,  v->space_prefix, v->normalize_nfc, (uint32_t)v->unknown_id,
	};
	page_add(&page, words, sizeof(words));
	for (uint32_t i = 0; i < v->token_count; i++) {
		page_add_text(&page, v->tokens[i]);
		page_add(&page, &v->types[i], 1);
		if (v->strips)
			page_add(&page, &v->strips[i], 1);
		if (v->scores)
			page_add(&page, &v->scores[i], sizeof(v->scores[i]));
	}
	for (uint32_t i = 0; i < v->merge_count; i++) {
		page_add_text(&page, v->merges[i].left);
		page_add_text(&page, v->merges[i].right);
	}
	for (uint32_t i = 0; i < v->pattern_count; i++)
		page_add_text(&page, v->patterns[i]);
	digest_add(digest, page.bytes, page.used);
}

void model_fingerprint(const struct model *model, uint8_t ret_digest[32])
{
	struct digest digest = { { 0 } };
	digest_add_text(&digest, "baton model fingerprint 1");
	digest_add_config(&digest, &model->config);
	digest_add_vocab(&digest, &model->vocab);
	for (uint32_t i = 0; i < model->tensor_count; i++) {
		const struct tensor *tensor = &model->tensors[i];
		digest_add_text(&digest, tensor->name);
		const uint32_t shape[] = { tensor->type, tensor->column_count, tensor->row_count };
		digest_add(&digest, shape, sizeof(shape));
		size_t edge = MIN(tensor->bytes, EDGE_BYTES);
		digest_add(&digest, tensor->data, edge);
		digest_add(&digest, (const char *)tensor->data + tensor->bytes - edge, edge);
	}
	memcpy(ret_digest, digest.v, sizeof(digest.v));
}

void model_kv_shape(const struct model *model, uint32_t block_tokens, struct kv_shape *ret_shape)
{
	*ret_shape = (struct kv_shape){
		.group_count = 1,
		.block_tokens = block_tokens,
		.groups[0] = {
			.layer_count = model->config.layer_count,
			.head_count = model->config.kv_head_count,
			.head_dim = model->config.head_dim,
			.element_bytes = 2,
		},
	};
}

void model_kv_format(const struct model *model, const struct kv_shape *shape, uint8_t ret_digest[32])
{
	uint8_t fingerprint[32];
	model_fingerprint(model, fingerprint);
	struct digest digest = { { 0 } };
	digest_add_text(&digest, "baton kv format");
	digest_add_u32(&digest, KV_FORMAT_VERSION);
	digest_add(&digest, fingerprint, sizeof(fingerprint));
	digest_add_text(&digest, ""); /* adapter: none yet */
	for (uint32_t i = 0; i < shape->group_count; i++) {
		const struct kv_group *g = &shape->groups[i];
		const uint32_t words[] = { g->layer_count, g->head_count, g->head_dim,
					   g->element_bytes, g->window };
		digest_add(&digest, words, sizeof(words));
	}
	digest_add_u32(&digest, shape->block_tokens);
	const struct model_config *c = &model->config;
	const uint32_t rope[] = { c->rope_dim, c->rope_interleaved, c->rope_divisors != NULL };
	digest_add(&digest, rope, sizeof(rope));
	digest_add(&digest, &c->rope_base, sizeof(c->rope_base));
	if (c->rope_divisors)
		digest_add(&digest, c->rope_divisors, c->rope_dim / 2 * sizeof(float));
	memcpy(ret_digest, digest.v, sizeof(digest.v));
}
