/*
 * The page table of one sequence: which blocks hold its KV, which keys its complete blocks have,
 * and the ids of the tokens after the last complete block (to compute the next key from).
 *
 * "Named" tokens are those whose ids the sequence knows; their KV may be computed later.
 *
 * Invariants (kv_sequence_check)
 *   S1  block_count covers the named tokens or fewer; every block is referenced.
 *   S2  keys[i] follows from keys[i-1] (the root for i = 0) and block i's tokens.
 *   S3  A block that several sequences have is written by none: complete ones never change, and
 *       kv_sequence_grow() gives a shared partial tail a copy of its own first.
 */
#ifndef BATON_KV_SEQUENCE_H
#define BATON_KV_SEQUENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "kv/key.h"
#include "kv/node.h"

struct kv_sequence {
	kv_block_id *blocks;  /* [blocks_max], page table from token 0 */
	struct kv_key *keys;  /* [blocks_max], of complete blocks of named tokens */
	uint32_t *tail;       /* [block_tokens], named tokens after the last complete block */
	struct kv_key root;
	uint32_t blocks_max, block_tokens;
	uint32_t block_count;
	uint32_t token_count; /* named */
	uint32_t committed;   /* leading blocks offered to the index */
};

/* "Copy block @source to @target": work for whoever owns the bytes, before the next batch. */
struct kv_copy {
	kv_block_id source, target;
};

int kv_sequence_init(struct kv_sequence *s, uint32_t blocks_max, uint32_t block_tokens);
void kv_sequence_fini(struct kv_sequence *s);

/* Names a prompt: keys and tail. The sequence has no block yet. */
void kv_sequence_start(struct kv_sequence *s, const struct kv_key *root, const uint32_t tokens[],
		       uint32_t token_count);
/* References the longest cached prefix that leaves at least @leave_tokens tokens: 1 where they
 * are to be run (without a row there are no logits), 0 where only the KV is wanted.
 * Return: blocks matched. */
uint32_t kv_sequence_match(struct kv_sequence *s, struct kv_node *node, uint32_t leave_tokens);
/* Takes fresh blocks in @state until the named tokens are covered; all or none.
 * Return: blocks taken, or -ENOSPC. */
int kv_sequence_cover(struct kv_sequence *s, struct kv_node *node, enum kv_block_state state);
/* Makes room to write one token after the named ones: a fresh block at a border, a copy of a
 * shared tail, else nothing. Return: 0; 1 when @ret_copy is to be done; -ENOSPC. */
int kv_sequence_grow(struct kv_sequence *s, struct kv_node *node, struct kv_copy *ret_copy);
/* True when kv_sequence_grow() would take a block. */
bool kv_sequence_grow_takes(const struct kv_sequence *s, const struct kv_node *node);
void kv_sequence_append(struct kv_sequence *s, uint32_t token); /* names one more token */
/* Offers the complete blocks among the first @computed_tokens to the index. */
void kv_sequence_commit(struct kv_sequence *s, struct kv_node *node, uint32_t computed_tokens);

/* @target becomes a second sequence over the same blocks. */
void kv_sequence_fork(struct kv_sequence *target, const struct kv_sequence *source,
		      struct kv_node *node);
/* @target takes over what @source has; @source is empty after it. */
void kv_sequence_move(struct kv_sequence *target, struct kv_sequence *source);
/* RESERVED blocks: all have landed; or the transfer was taken back: quarantined, then freed. */
void kv_sequence_land(struct kv_sequence *s, struct kv_node *node);
void kv_sequence_quarantine(struct kv_sequence *s, struct kv_node *node);
void kv_sequence_unquarantine(struct kv_sequence *s, struct kv_node *node);
/* Lets go of every block, the last one first; what is named stays named. */
void kv_sequence_drop(struct kv_sequence *s, struct kv_node *node);

void kv_sequence_check(const struct kv_sequence *s, const struct kv_node *node);

#endif
