/* Block layouts of the file are GGUF's; layouts of the tiles stand in kernels.h. */
#include "engine/cpu/tile.h"

#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "engine/half.h"

/* One block of 32 weights of one row: unsigned integers, scale and minimum as the tile has them. */
struct unpacked {
	uint8_t q[BLOCK];
	uint16_t scale_half, minimum_half;
	float scale, minimum;
	int8_t sub_scale[2];
};

static uint16_t load16(const uint8_t *p)
{
	uint16_t value;
	memcpy(&value, p, sizeof value);
	return value;
}

static void unpack_nibbles(const uint8_t *p, uint8_t q[BLOCK])
{
	for (int i = 0; i < 16; i++) {
		q[i] = p[i] & 15;
		q[i + 16] = p[i] >> 4;
	}
}

static void unpack_fifth_bit(const uint8_t *p, uint8_t q[BLOCK])
{
	uint32_t bits;
	memcpy(&bits, p, sizeof bits);
	for (int i = 0; i < 32; i++)
		q[i] |= (uint8_t)((bits >> i & 1) << 4);
}

/* Scale and minimum of sub-block @sub of a Q4_K or Q5_K super-block: eight pairs of 6 bits. */
static void k_scale(const uint8_t *scales, uint32_t sub, uint8_t *ret_scale, uint8_t *ret_minimum)
{
	if (sub < 4) {
		*ret_scale = scales[sub] & 63;
		*ret_minimum = scales[sub + 4] & 63;
	} else {
		*ret_scale = (uint8_t)((scales[sub + 4] & 15) | (scales[sub - 4] >> 6) << 4);
		*ret_minimum = (uint8_t)((scales[sub + 4] >> 4) | (scales[sub] >> 6) << 4);
	}
}

static void unpack_k45(const uint8_t *super, uint32_t sub, bool five, struct unpacked *u)
{
	uint8_t scale, minimum;
	const uint8_t *fifth = super + 16, *quants = super + (five ? 48 : 16) + sub / 2 * 32;
	k_scale(super + 4, sub, &scale, &minimum);
	u->scale = half_to_f32(load16(super)) * (float)scale;
	u->minimum = -(half_to_f32(load16(super + 2)) * (float)minimum);
	for (int i = 0; i < 32; i++) {
		u->q[i] = sub % 2 ? quants[i] >> 4 : quants[i] & 15;
		if (five)
			u->q[i] |= (uint8_t)((fifth[i] >> sub & 1) << 4);
	}
}

static void unpack_k6(const uint8_t *super, uint32_t sub, struct unpacked *u)
{
	uint32_t half = sub / 4, quarter = sub % 4;
	const uint8_t *low = super + 64 * half + 32 * (quarter & 1), *high = super + 128 + 32 * half;
	for (int i = 0; i < 32; i++)
		u->q[i] = (uint8_t)((quarter >= 2 ? low[i] >> 4 : low[i] & 15) |
				    (high[i] >> (2 * quarter) & 3) << 4);
	memcpy(u->sub_scale, super + 192 + 8 * half + 2 * quarter, 2);
	u->scale = half_to_f32(load16(super + 208));
}

static void unpack_block(enum tensor_type type, const uint8_t *row, uint32_t block, struct unpacked *u)
{
	const uint8_t *p;
	switch (type) {
	case TENSOR_Q4_0:
		p = row + (size_t)block * 18;
		u->scale_half = load16(p);
		u->minimum_half = half_from_f32(-8.0f * half_to_f32(u->scale_half));
		unpack_nibbles(p + 2, u->q);
		break;
	case TENSOR_Q4_1:
		p = row + (size_t)block * 20;
		u->scale_half = load16(p);
		u->minimum_half = load16(p + 2);
		unpack_nibbles(p + 4, u->q);
		break;
	case TENSOR_Q5_0:
		p = row + (size_t)block * 22;
		u->scale = half_to_f32(load16(p));
		u->minimum = -16.0f * u->scale;
		unpack_nibbles(p + 6, u->q);
		unpack_fifth_bit(p + 2, u->q);
		break;
	case TENSOR_Q5_1:
		p = row + (size_t)block * 24;
		u->scale = half_to_f32(load16(p));
		u->minimum = half_to_f32(load16(p + 2));
		unpack_nibbles(p + 8, u->q);
		unpack_fifth_bit(p + 4, u->q);
		break;
	case TENSOR_Q8_0:
		p = row + (size_t)block * 34;
		u->scale_half = load16(p);
		for (int i = 0; i < 32; i++)
			u->q[i] = p[2 + i] ^ 0x80; /* w + 128 */
		break;
	case TENSOR_Q4_K:
		unpack_k45(row + (size_t)(block / 8) * 144, block % 8, false, u);
		break;
	case TENSOR_Q5_K:
		unpack_k45(row + (size_t)(block / 8) * 176, block % 8, true, u);
		break;
	default:
		unpack_k6(row + (size_t)(block / 8) * 210, block % 8, u);
	}
}

static void put_block(enum tile_kind kind, uint32_t r, const struct unpacked *u, uint8_t *block)
{
	bool nibbles = kind == TILE_N4 || kind == TILE_N4F;
	uint8_t *rest = block + (nibbles ? 256 : 512);
	for (uint32_t j = 0; j < 8; j++) {
		for (uint32_t i = 0; i < 4; i++) {
			if (!nibbles)
				block[64 * j + 4 * r + i] = u->q[4 * j + i];
			else if (j % 2)
				block[64 * (j / 2) + 4 * r + i] |= (uint8_t)(u->q[4 * j + i] << 4);
			else
				block[64 * (j / 2) + 4 * r + i] = u->q[4 * j + i];
		}
	}
	if (kind == TILE_N4 || kind == TILE_S8) {
		memcpy(rest + 2 * r, &u->scale_half, 2);
		if (kind == TILE_N4)
			memcpy(rest + 32 + 2 * r, &u->minimum_half, 2);
		return;
	}
	memcpy(rest + 4 * r, &u->scale, 4);
	if (kind == TILE_U6) {
		rest[64 + r] = (uint8_t)u->sub_scale[0];
		rest[80 + r] = (uint8_t)u->sub_scale[1];
	} else {
		memcpy(rest + 64 + 4 * r, &u->minimum, 4);
	}
}

int tile_plan(const struct tensor *tensor, struct matrix *ret_matrix)
{
	static const struct {
		enum tensor_type type;
		enum tile_kind kind;
		size_t block_bytes;
	} plans[] = {
		{ TENSOR_F32, TILE_F32, 64 },	 { TENSOR_F16, TILE_F16, 32 },
		{ TENSOR_BF16, TILE_BF16, 32 },	 { TENSOR_Q4_0, TILE_N4, 320 },
		{ TENSOR_Q4_1, TILE_N4, 320 },	 { TENSOR_Q5_0, TILE_U5F, 640 },
		{ TENSOR_Q5_1, TILE_U5F, 640 },	 { TENSOR_Q8_0, TILE_S8, 544 },
		{ TENSOR_Q4_K, TILE_N4F, 384 },	 { TENSOR_Q5_K, TILE_U5F, 640 },
		{ TENSOR_Q6_K, TILE_U6, 608 },
	};
	for (size_t i = 0; i < ARRAY_COUNT(plans); i++) {
		if (plans[i].type != tensor->type)
			continue;
		bool is_float = tile_is_float(plans[i].kind);
		uint32_t steps = is_float ? tensor->column_count : tensor->column_count / BLOCK;
		if (!is_float && tensor->column_count % BLOCK)
			return -ENOTSUP;
		*ret_matrix = (struct matrix){
			.kind = plans[i].kind,
			.row_count = tensor->row_count,
			.column_count = tensor->column_count,
			.tile_count = DIV_UP(tensor->row_count, TILE_ROWS),
			.block_count = is_float ? 0 : steps,
			.block_bytes = plans[i].block_bytes,
			.tile_bytes = plans[i].block_bytes * steps,
		};
		return 0;
	}
	return -ENOTSUP;
}

size_t tile_matrix_bytes(const struct matrix *matrix)
{
	return ALIGN_UP(matrix->tile_bytes * matrix->tile_count, (size_t)64);
}

static void pack_float(const struct tensor *tensor, uint32_t row, uint32_t r, uint8_t *tile)
{
	size_t element = tensor->type == TENSOR_F32 ? 4 : 2;
	const uint8_t *from = (const uint8_t *)tensor->data + row * element * tensor->column_count;
	for (size_t k = 0; k < tensor->column_count; k++)
		memcpy(tile + (k * TILE_ROWS + r) * element, from + k * element, element);
}

void tile_pack(const struct tensor *tensor, const struct matrix *matrix, uint32_t first, uint32_t end,
	       uint8_t *data)
{
	size_t row_bytes = tensor_row_bytes(tensor->type, tensor->column_count);
	for (uint32_t t = first; t < end; t++) {
		uint8_t *tile = data + t * matrix->tile_bytes;
		uint32_t rows = MIN(TILE_ROWS, tensor->row_count - t * TILE_ROWS);
		if (rows < TILE_ROWS)
			memset(tile, 0, matrix->tile_bytes);
		for (uint32_t r = 0; r < rows; r++) {
			uint32_t row = t * TILE_ROWS + r;
			if (tile_is_float(matrix->kind)) {
				pack_float(tensor, row, r, tile);
				continue;
			}
			const uint8_t *from = (const uint8_t *)tensor->data + row * row_bytes;
			for (uint32_t b = 0; b < matrix->block_count; b++) {
				struct unpacked u;
				unpack_block(tensor->type, from, b, &u);
				put_block(matrix->kind, r, &u, tile + b * matrix->block_bytes);
			}
		}
	}
}
