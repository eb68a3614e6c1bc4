/* Any bytes as text. The first byte chooses the vocabulary and whether special strings count.
 * Where the vocabulary can say every byte, the ids say the text; only SPM reads U+2581 as a space. */
#include "fuzz.h"

#include <limits.h>
#include <string.h>

#include "model/tokenizer.h"
#include "model/utf8.h"

static const char *const files[] = { "tiny/tiny-llama-f32.gguf", "tiny/tiny-llama3-rope-f32.gguf",
				     "tiny/tiny-qwen2-f32.gguf",
				     "tiny/tiny-mistral-nemo-f32.gguf", "hf-spm",
				     "hf/hf-llama3-f32" };
#define FILE_COUNT (sizeof(files) / sizeof(files[0]))

static struct model *models[FILE_COUNT];

static const struct model *get_model(size_t index)
{
	char path[PATH_MAX], error[256];
	if (!models[index]) {
		snprintf(path, sizeof(path), "%s/%s", TEST_GOLDEN, files[index]);
		int result = model_open(path, MODEL_NO_WEIGHTS, &models[index], error, sizeof(error));
		if (result < 0)
			fprintf(stderr, "%s\n", error);
		FUZZ_CHECK(result >= 0);
	}
	return models[index];
}

static void spaces(struct buf *text)
{
	size_t to = 0;
	for (size_t at = 0; at < text->bytes; to++) {
		bool mark = text->bytes - at >= 3 && !memcmp(text->data + at, "\xe2\x96\x81", 3);
		text->data[to] = mark ? ' ' : text->data[at];
		at += mark ? 3 : 1;
	}
	text->bytes = to;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	if (!bytes)
		return 0;
	const struct model *model = get_model(data[0] % FILE_COUNT);
	const struct tokenizer *t = model_tokenizer(model);
	bool special = data[0] & 0x80;
	const char *text = (const char *)data + 1;
	struct token_ids ids = { 0 };
	struct buf out, wanted;
	buf_init(&out, 0);
	buf_init(&wanted, 0);
	FUZZ_CHECK(tokenize(t, text, bytes - 1, special ? TOKENIZE_SPECIAL : 0, &ids) == 0);
	for (uint32_t i = 0; i < ids.count; i++) {
		FUZZ_CHECK(ids.v[i] < tokenizer_vocab_count(t));
		FUZZ_CHECK(special || !tokenizer_is_special(t, ids.v[i]));
	}
	detokenize(t, ids.v, ids.count, true, &out);
	utf8_replace(text, bytes - 1, &wanted);
	if (tokenizer_is_spm(t))
		spaces(&wanted);
	if (!special || !tokenizer_is_spm(t)) {
		FUZZ_CHECK(out.bytes == wanted.bytes);
		FUZZ_CHECK(!out.bytes || !memcmp(out.data, wanted.data, out.bytes));
	}
	buf_fini(&out);
	buf_fini(&wanted);
	free(ids.v);
	return 0;
}
