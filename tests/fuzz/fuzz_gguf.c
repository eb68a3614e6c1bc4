/* Any bytes as a GGUF file: refused with a sentence, or a model that can be used. */
#include "fuzz.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "model/model.h"
#include "model/tokenizer.h"

static void use_tensors(const struct model *model)
{
	static const char *const names[] = { "token_embd.weight", "blk.0.attn_q.weight",
					     "output_norm.weight" };
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		const struct tensor *tensor = model_tensor(model, names[i]);
		FUZZ_CHECK(tensor);
		float *row = malloc(tensor->column_count * sizeof(*row));
		FUZZ_CHECK(row);
		tensor_row_f32(tensor, 0, row);
		tensor_row_f32(tensor, tensor->row_count - 1, row);
		free(row);
	}
}

static void use_tokenizer(const struct model *model)
{
	static const char text[] = "<s>Hi </s>\n  \xe4\xbd\xa0 123 it's \xff";
	struct token_ids ids = { 0 };
	struct buf out;
	buf_init(&out, 1 << 20);
	(void)tokenize(model_tokenizer(model), text, sizeof(text) - 1,
		       TOKENIZE_SPECIAL | TOKENIZE_ADD_BOS, &ids);
	for (uint32_t i = 0; i < ids.count; i++)
		FUZZ_CHECK(ids.v[i] < model_config(model)->vocab_count);
	detokenize(model_tokenizer(model), ids.v, ids.count, true, &out);
	buf_fini(&out);
	free(ids.v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	char path[64], error[256] = "";
	int fd = memfd_create("fuzz", MFD_CLOEXEC);
	FUZZ_CHECK(fd >= 0);
	FUZZ_CHECK(write(fd, data, bytes) == (ssize_t)bytes);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	for (int flags = 0; flags <= MODEL_NO_WEIGHTS; flags += MODEL_NO_WEIGHTS) {
		struct model *model;
		if (model_open(path, flags, &model, error, sizeof(error)) < 0) {
			FUZZ_CHECK(error[0]);
			continue;
		}
		uint8_t digest[32];
		model_fingerprint(model, digest);
		if (!flags)
			use_tensors(model);
		use_tokenizer(model);
		model_close(model);
	}
	close(fd);
	return 0;
}
