/*
 * From logits to a token. Deterministic in the bits of the logits: own exp and log, fixed sums,
 * Philox keyed by (seed, choice, position), so the same logits give the same token on any node.
 */
#ifndef BATON_ENGINE_SAMPLE_H
#define BATON_ENGINE_SAMPLE_H

#include <stdint.h>

#define SAMPLE_TOP_MAX 20
#define SAMPLE_BANS_MAX 72 /* 64 of the client, 8 of the model */

struct sample_params {
	float temperature; /* 0: greedy (ties: the lower id) */
	float top_p;       /* 0..1]; 1: off */
	float min_p;       /* 0: off */
	uint32_t top_k;    /* 0: off */
	uint64_t seed;
	uint32_t top_logprobs; /* 0..SAMPLE_TOP_MAX alternatives wanted */
	uint32_t want_logprob; /* 0: no logprob is computed */
};

struct sample_request {
	const struct sample_params *params; /* borrowed until the batch has run */
	uint32_t choice;
	uint64_t position;    /* of the sampled token among this choice's output, from 0 */
	const uint32_t *bans; /* ids that may not come (end of text before min_tokens) */
	uint32_t ban_count;
};

struct sample_result {
	uint32_t token;
	float logprob; /* of the raw logits at temperature 1; 0 when not wanted */
	uint32_t top_count;
	uint32_t top_ids[SAMPLE_TOP_MAX]; /* best first, ties: the lower id */
	float top_logprobs[SAMPLE_TOP_MAX];
};

/* @scratch: [vocab_count] floats and ids, the caller's; never allocates. */
struct sample_scratch {
	float *weights;
	uint32_t *ids;
};
void sample_token(const float logits[], uint32_t vocab_count, const struct sample_request *request,
		  struct sample_scratch *scratch, struct sample_result *ret_result);

#endif
