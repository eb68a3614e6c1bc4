#include "model/tokenizer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/check.h"
#include "base/err.h"
#include "model/tokenizer_private.h"
#include "model/utf8.h"

/* All special strings of a vocabulary together; Llama 3's 256 have 7 KiB. */
#define TRIE_BYTES_MAX (1u << 20)
#define SPM_SPACE "\xe2\x96\x81" /* U+2581 */

int text_map_init(struct text_map *map, uint32_t capacity)
{
	size_t slots = 16;
	while (slots < (size_t)capacity * 2)
		slots *= 2;
	*map = (struct text_map){ .mask = slots - 1, .capacity = capacity };
	map->slots = calloc(slots, sizeof(map->slots[0]));
	return map->slots ? 0 : -ENOMEM;
}

void text_map_fini(struct text_map *map)
{
	free(map->slots);
	map->slots = NULL;
}

static struct text_slot *text_map_find(const struct text_map *map, struct text text)
{
	size_t at = XXH3_64bits(text.data, text.bytes) & map->mask;
	for (; map->slots[at].used; at = (at + 1) & map->mask) {
		const struct text *other = &map->slots[at].text;
		if (other->bytes == text.bytes && memcmp(other->data, text.data, text.bytes) == 0)
			break;
	}
	return &map->slots[at];
}

uint32_t text_map_put(struct text_map *map, struct text text, uint32_t value)
{
	struct text_slot *slot = text_map_find(map, text);
	if (slot->used)
		return slot->value;
	CHECK(map->count < map->capacity);
	*slot = (struct text_slot){ text, value, true };
	map->count++;
	return value;
}

uint32_t text_map_get(const struct text_map *map, struct text text)
{
	const struct text_slot *slot = text_map_find(map, text);
	return slot->used ? slot->value : SYMBOL_NONE;
}

/* GPT-2's byte alphabet: printable bytes of Latin-1 stand for themselves, the 68 others for
 * U+0100 onward in rising order. */
static uint32_t alphabet_character(uint32_t byte)
{
	if ((byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174)
		return byte;
	uint32_t others = byte;
	if (byte > 126)
		others -= 94;
	if (byte > 172)
		others -= 12;
	return 256 + others;
}

uint32_t tokenizer__alphabet_byte(const char *text, size_t bytes)
{
	uint32_t character;
	if (!bytes || utf8_decode(text, bytes, &character) < 0)
		return SYMBOL_NONE;
	if (character < 256)
		return alphabet_character(character) == character ? character : SYMBOL_NONE;
	if (character >= 256 + 68)
		return SYMBOL_NONE;
	uint32_t byte = character - 256;
	if (byte >= 33)
		byte += 94;
	if (byte >= 161)
		byte += 12;
	return byte;
}

static size_t decode_alphabet(struct text text, char *ret)
{
	size_t count = 0;
	for (size_t i = 0; i < text.bytes;) {
		uint32_t character;
		int length = utf8_decode(text.data + i, text.bytes - i, &character);
		size_t bytes = length < 0 ? 1 : (size_t)length;
		uint32_t byte = tokenizer__alphabet_byte(text.data + i, bytes);
		if (byte < 256) {
			ret[count++] = (char)byte;
		} else {
			memcpy(ret + count, text.data + i, bytes);
			count += bytes;
		}
		i += bytes;
	}
	return count;
}

/* "<0x0A>" -> 10, else -1. */
static int parse_byte_token(struct text text)
{
	if (text.bytes != 6 || memcmp(text.data, "<0x", 3) != 0 || text.data[5] != '>')
		return -1;
	int value = 0;
	for (int i = 3; i < 5; i++) {
		char c = text.data[i];
		int digit = c >= '0' && c <= '9'   ? c - '0'
			    : c >= 'A' && c <= 'F' ? c - 'A' + 10
			    : c >= 'a' && c <= 'f' ? c - 'a' + 10
						   : -1;
		if (digit < 0)
			return -1;
		value = value * 16 + digit;
	}
	return value;
}

static size_t decode_spm(struct text text, enum vocab_type type, char *ret)
{
	int byte = type == VOCAB_BYTE ? parse_byte_token(text) : -1;
	if (byte >= 0) {
		*ret = (char)byte;
		return 1;
	}
	size_t count = 0;
	for (size_t i = 0; i < text.bytes;) {
		if (text.bytes - i >= 3 && memcmp(text.data + i, SPM_SPACE, 3) == 0) {
			ret[count++] = ' ';
			i += 3;
		} else {
			ret[count++] = text.data[i++];
		}
	}
	return count;
}

static size_t decode_token(const struct vocab *v, uint32_t id, char *ret)
{
	struct text text = v->tokens[id];
	switch (v->types[id]) {
	case VOCAB_UNUSED:
		return 0;
	case VOCAB_CONTROL:
	case VOCAB_UNKNOWN:
	case VOCAB_USER_DEFINED:
		if (v->kind == VOCAB_SPM && v->types[id] == VOCAB_USER_DEFINED)
			break;
		if (text.bytes)
			memcpy(ret, text.data, text.bytes);
		return text.bytes;
	default:
		break;
	}
	return v->kind == VOCAB_BPE ? decode_alphabet(text, ret) : decode_spm(text, v->types[id], ret);
}

static int build_pieces(struct tokenizer *t)
{
	const struct vocab *v = t->vocab;
	size_t bytes = 0;
	for (uint32_t i = 0; i < v->token_count; i++)
		bytes += v->tokens[i].bytes;
	t->pieces = malloc(bytes + 1);
	t->piece_at = malloc(((size_t)v->token_count + 1) * sizeof(t->piece_at[0]));
	if (!t->pieces || !t->piece_at)
		return -ENOMEM;
	size_t at = 0;
	for (uint32_t i = 0; i < v->token_count; i++) {
		t->piece_at[i] = at;
		at += decode_token(v, i, t->pieces + at);
	}
	t->piece_at[v->token_count] = at;
	return 0;
}

/* Tokens that plain text can become. Control tokens never: they are not text. */
static bool is_text_token(const struct vocab *v, uint32_t id)
{
	enum vocab_type type = v->types[id];
	return v->tokens[id].bytes &&
	       (type == VOCAB_NORMAL || type == VOCAB_USER_DEFINED || type == VOCAB_UNDEFINED ||
		type == VOCAB_UNUSED);
}

/* SPM looks texts up as they stand in the file; BPE's ignore_merges in raw bytes. */
static int build_texts(struct tokenizer *t)
{
	const struct vocab *v = t->vocab;
	int error = text_map_init(&t->texts, v->token_count);
	if (error < 0)
		return error;
	for (uint32_t i = 0; i < v->token_count; i++) {
		if (!is_text_token(v, i))
			continue;
		struct text text = v->tokens[i];
		if (v->kind == VOCAB_BPE)
			text = (struct text){ t->pieces + t->piece_at[i],
					      t->piece_at[i + 1] - t->piece_at[i] };
		if (!text.bytes)
			continue;
		(void)text_map_put(&t->texts, text, i);
		t->text_bytes_max = MAX(t->text_bytes_max, text.bytes);
	}
	return 0;
}

/* @owned: the text lives as long as the model; else it is copied when it is new. */
static int intern(struct model *model, struct tokenizer *t, struct text text, bool owned,
		  uint32_t *ret)
{
	*ret = text_map_get(&t->symbols, text);
	if (*ret != SYMBOL_NONE)
		return 0;
	if (!owned) {
		char *copy = model__copy(model, text);
		if (!copy)
			return -ENOMEM;
		text.data = copy;
	}
	*ret = t->symbol_count++;
	(void)text_map_put(&t->symbols, text, *ret);
	t->symbol_texts[*ret] = text;
	return 0;
}

static int intern_merge(struct model *model, struct tokenizer *t, uint32_t rank,
			struct buf *joined)
{
	const struct vocab_merge *merge = &t->vocab->merges[rank];
	uint32_t left, right, result;
	int error;
	buf_clear(joined);
	buf_append(joined, merge->left.data, merge->left.bytes);
	buf_append(joined, merge->right.data, merge->right.bytes);
	if (joined->failed)
		return -ENOMEM;
	struct text text = { joined->data, joined->bytes };
	if ((error = intern(model, t, merge->left, true, &left)) < 0 ||
	    (error = intern(model, t, merge->right, true, &right)) < 0 ||
	    (error = intern(model, t, text, false, &result)) < 0)
		return error;
	/* A pair listed twice counts where it stands first. */
	(void)map_put(&t->pairs, (uint64_t)left << 32 | right,
		      (uint64_t)rank << 32 | result);
	return 0;
}

/* Which token each symbol is, if any. */
static int name_symbols(struct tokenizer *t)
{
	t->symbol_ids = malloc(t->symbol_count * sizeof(t->symbol_ids[0]));
	if (!t->symbol_ids)
		return -ENOMEM;
	for (uint32_t i = 0; i < t->symbol_count; i++)
		t->symbol_ids[i] = SYMBOL_NONE;
	for (uint32_t i = 0; i < t->vocab->token_count; i++) {
		if (!is_text_token(t->vocab, i))
			continue;
		uint32_t symbol = text_map_get(&t->symbols, t->vocab->tokens[i]);
		if (symbol != SYMBOL_NONE && t->symbol_ids[symbol] == SYMBOL_NONE)
			t->symbol_ids[symbol] = i;
	}
	return 0;
}

static int build_merges(struct model *model, struct tokenizer *t)
{
	const struct vocab *v = t->vocab;
	uint32_t capacity = 256 + 3 * v->merge_count; /* at most 3 << 24 */
	struct buf joined;
	buf_init(&joined, 0);
	t->symbol_texts = calloc(capacity, sizeof(t->symbol_texts[0]));
	int error = t->symbol_texts ? text_map_init(&t->symbols, capacity) : -ENOMEM;
	if (error >= 0)
		error = map_init(&t->pairs, v->merge_count);
	for (uint32_t byte = 0; v->kind == VOCAB_BPE && byte < 256 && error >= 0; byte++) {
		uint32_t symbol;
		char text[4];
		size_t bytes = (size_t)utf8_encode(alphabet_character(byte), text);
		error = intern(model, t, (struct text){ text, bytes }, false, &symbol);
	}
	for (uint32_t i = 0; i < v->merge_count && error >= 0; i++)
		error = intern_merge(model, t, i, &joined);
	if (error >= 0)
		error = name_symbols(t);
	buf_fini(&joined);
	return error;
}

struct scored {
	float score;
	uint32_t id;
};

static int compare_scored(const void *a, const void *b)
{
	float x = ((const struct scored *)a)->score, y = ((const struct scored *)b)->score;
	return x > y ? -1 : x < y;
}

/* Scores become ranks, equal ones the same, so that both kinds merge by one rule. */
static int build_ranks(struct tokenizer *t)
{
	const struct vocab *v = t->vocab;
	struct scored *order = calloc((size_t)v->token_count + 1, sizeof(order[0]));
	t->ranks = calloc((size_t)v->token_count + 1, sizeof(t->ranks[0]));
	if (!order || !t->ranks) {
		free(order);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < v->token_count; i++) {
		float score = v->scores[i];
		/* A NaN would have no place in the order. */
		order[i] = (struct scored){ score == score ? score : -1e30f, i };
	}
	qsort(order, v->token_count, sizeof(order[0]), compare_scored);
	uint32_t rank = 0;
	for (uint32_t i = 0; i < v->token_count; i++) {
		if (i && order[i].score != order[i - 1].score)
			rank = i;
		t->ranks[order[i].id] = rank;
	}
	free(order);
	return 0;
}

static void find_bytes(struct tokenizer *t)
{
	const struct vocab *v = t->vocab;
	for (uint32_t byte = 0; byte < 256; byte++)
		t->byte_ids[byte] = SYMBOL_NONE;
	for (uint32_t i = 0; i < v->token_count; i++) {
		int byte = v->types[i] == VOCAB_BYTE ? parse_byte_token(v->tokens[i]) : -1;
		if (byte >= 0)
			t->byte_ids[byte] = i;
	}
}

static bool is_whole_token(const struct vocab *v, uint32_t id)
{
	enum vocab_type type = v->types[id];
	return v->tokens[id].bytes &&
	       (type == VOCAB_CONTROL || type == VOCAB_USER_DEFINED || type == VOCAB_UNKNOWN);
}

static void trie_insert(struct tokenizer *t, struct text text, uint32_t id)
{
	uint32_t node = 0;
	for (size_t i = 0; i < text.bytes; i++) {
		uint64_t key = (uint64_t)node << 8 | (uint8_t)text.data[i], next;
		if (!map_get(&t->trie, key, &next)) {
			next = t->trie_count;
			CHECK(map_put(&t->trie, key, next) == 0);
			t->trie_ids[t->trie_count++] = SYMBOL_NONE;
		}
		node = (uint32_t)next;
	}
	if (t->trie_ids[node] == SYMBOL_NONE)
		t->trie_ids[node] = id;
	uint8_t first = (uint8_t)text.data[0];
	t->trie_first[first / 64] |= UINT64_C(1) << (first % 64);
}

static int build_trie(struct model *model, struct tokenizer *t)
{
	const struct vocab *v = t->vocab;
	size_t bytes = 0;
	for (uint32_t i = 0; i < v->token_count; i++)
		bytes += is_whole_token(v, i) ? v->tokens[i].bytes : 0;
	if (bytes > TRIE_BYTES_MAX)
		return model__fail(model, "the special tokens have %zu bytes, more than %u", bytes,
				   TRIE_BYTES_MAX);
	t->trie_ids = malloc((bytes + 1) * sizeof(t->trie_ids[0]));
	if (!t->trie_ids)
		return -ENOMEM;
	int error = map_init(&t->trie, (uint32_t)bytes);
	if (error < 0)
		return error;
	t->trie_ids[0] = SYMBOL_NONE;
	t->trie_count = 1;
	for (uint32_t i = 0; i < v->token_count; i++) {
		if (is_whole_token(v, i))
			trie_insert(t, v->tokens[i], i);
	}
	return 0;
}

int tokenizer__new(struct model *model, struct tokenizer **ret_tokenizer)
{
	struct tokenizer *t = calloc(1, sizeof(*t));
	if (!t)
		return -ENOMEM;
	t->vocab = &model->vocab;
	t->config = &model->config;
	int error = build_pieces(t);
	if (error >= 0)
		error = build_texts(t);
	find_bytes(t);
	if (error >= 0)
		error = t->vocab->scores ? build_ranks(t) : build_merges(model, t);
	if (error >= 0)
		error = pre__compile(model, t);
	if (error >= 0)
		error = build_trie(model, t);
	if (error < 0) {
		tokenizer__free(t);
		return error;
	}
	*ret_tokenizer = t;
	return 0;
}

void tokenizer__free(struct tokenizer *t)
{
	if (!t)
		return;
	for (uint32_t i = 0; i < t->pattern_count; i++)
		pcre2_code_free(t->patterns[i]);
	free(t->pieces);
	free(t->piece_at);
	free(t->symbol_ids);
	free(t->symbol_texts);
	free(t->ranks);
	free(t->trie_ids);
	text_map_fini(&t->texts);
	text_map_fini(&t->symbols);
	map_fini(&t->pairs);
	map_fini(&t->trie);
	free(t);
}

uint32_t tokenizer_vocab_count(const struct tokenizer *t)
{
	return t->vocab->token_count;
}

bool tokenizer_is_special(const struct tokenizer *t, uint32_t id)
{
	return id < t->vocab->token_count &&
	       (t->vocab->types[id] == VOCAB_CONTROL || t->vocab->types[id] == VOCAB_UNKNOWN);
}

bool tokenizer_is_spm(const struct tokenizer *t)
{
	return t->vocab->kind == VOCAB_SPM && t->vocab->space_prefix != SPACE_PREFIX_NONE;
}

void tokenizer_piece(const struct tokenizer *t, uint32_t id, bool special, struct buf *out)
{
	/* An embedding may have more rows than there are tokens: the rest are nothing. */
	if (id >= t->vocab->token_count || (!special && tokenizer_is_special(t, id)))
		return;
	buf_append(out, t->pieces + t->piece_at[id], t->piece_at[id + 1] - t->piece_at[id]);
}

void detokenize(const struct tokenizer *t, const uint32_t ids[], uint32_t count, bool special,
		struct buf *out)
{
	/* The encoder put a space in front of the text: the first piece of text gives it back. */
	bool drop_space = tokenizer_is_spm(t);
	for (uint32_t i = 0; i < count; i++) {
		uint32_t id = ids[i];
		if (!drop_space || id >= t->vocab->token_count || tokenizer_is_special(t, id)) {
			tokenizer_piece(t, id, special, out);
			continue;
		}
		const char *piece = t->pieces + t->piece_at[id];
		size_t bytes = t->piece_at[id + 1] - t->piece_at[id];
		size_t skip = bytes && piece[0] == ' ';
		buf_append(out, piece + skip, bytes - skip);
		drop_space = bytes == 0;
	}
}
