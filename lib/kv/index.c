#include "kv/index.h"

#include <errno.h>
#include <stdlib.h>

#include "base/check.h"

static struct kv_entry *entry_of(struct kv_index *index, kv_block_id block)
{
	CHECK(block.v < index->block_count);
	return &index->entries[block.v];
}

int kv_index_init(struct kv_index *index, uint32_t block_count)
{
	*index = (struct kv_index){
		.block_count = block_count,
		.oldest = KV_BLOCK_NONE,
		.newest = KV_BLOCK_NONE,
	};
	index->entries = calloc(block_count, sizeof *index->entries);
	if (!index->entries)
		return -ENOMEM;
	if (map_init(&index->map, block_count) < 0) {
		free(index->entries);
		return -ENOMEM;
	}
	return 0;
}

void kv_index_fini(struct kv_index *index)
{
	map_fini(&index->map);
	free(index->entries);
	*index = (struct kv_index){ 0 };
}

bool kv_index_find(const struct kv_index *index, const struct kv_key *key, kv_block_id *ret_block)
{
	uint64_t block;
	if (!map_get(&index->map, kv_key_hash(key), &block))
		return false;
	/* Keys are SHA-256: two with the same first half do not occur by accident, but whoever
	 * makes a pair gets a miss, not another prompt's KV. */
	if (!kv_key_equal(&index->entries[block].key, key))
		return false;
	*ret_block = (kv_block_id){ (uint32_t)block };
	return true;
}

uint32_t kv_index_match(const struct kv_index *index, const struct kv_key keys[],
			uint32_t block_limit, kv_block_id ret_blocks[])
{
	uint32_t count = 0;
	while (count < block_limit && kv_index_find(index, &keys[count], &ret_blocks[count]))
		count++;
	return count;
}

int kv_index_insert(struct kv_index *index, kv_block_id block, const struct kv_key *parent,
		    const struct kv_key *key)
{
	struct kv_entry *entry = entry_of(index, block);
	kv_block_id parent_block = { KV_BLOCK_NONE };

	CHECK(!entry->present);
	if (parent && !kv_index_find(index, parent, &parent_block))
		return -ENOENT;
	int r = map_put(&index->map, kv_key_hash(key), block.v);
	if (r < 0)
		return r;
	*entry = (struct kv_entry){ .key = *key, .parent = parent_block.v, .present = true };
	if (parent)
		entry_of(index, parent_block)->children++;
	index->present_count++;
	return 0;
}

void kv_index_remove(struct kv_index *index, kv_block_id block)
{
	struct kv_entry *entry = entry_of(index, block);
	CHECK(entry->present);
	CHECK(!entry->listed);
	CHECK(entry->children == 0);
	if (entry->parent != KV_BLOCK_NONE) {
		struct kv_entry *parent = entry_of(index, (kv_block_id){ entry->parent });
		CHECK(parent->children > 0);
		parent->children--;
	}
	CHECK(map_remove(&index->map, kv_key_hash(&entry->key)));
	entry->present = false;
	index->present_count--;
}

void kv_index_list(struct kv_index *index, kv_block_id block)
{
	struct kv_entry *entry = entry_of(index, block);
	CHECK(entry->present);
	CHECK(!entry->listed);
	entry->listed = true;
	entry->newer = KV_BLOCK_NONE;
	entry->older = index->newest;
	if (index->newest != KV_BLOCK_NONE)
		index->entries[index->newest].newer = block.v;
	else
		index->oldest = block.v;
	index->newest = block.v;
}

void kv_index_unlist(struct kv_index *index, kv_block_id block)
{
	struct kv_entry *entry = entry_of(index, block);
	CHECK(entry->listed);
	entry->listed = false;
	if (entry->older != KV_BLOCK_NONE)
		index->entries[entry->older].newer = entry->newer;
	else
		index->oldest = entry->newer;
	if (entry->newer != KV_BLOCK_NONE)
		index->entries[entry->newer].older = entry->older;
	else
		index->newest = entry->older;
}

bool kv_index_victim(const struct kv_index *index, kv_block_id *ret_block)
{
	if (index->oldest == KV_BLOCK_NONE)
		return false;
	CHECK(index->entries[index->oldest].children == 0); /* I3 */
	*ret_block = (kv_block_id){ index->oldest };
	return true;
}

void kv_index_check(const struct kv_index *index)
{
	uint32_t present = 0, listed = 0, walked = 0, children = 0, with_parent = 0;

	for (uint32_t i = 0; i < index->block_count; i++) {
		const struct kv_entry *entry = &index->entries[i];
		listed += entry->listed;
		if (!entry->present) {
			CHECK(!entry->listed);
			continue;
		}
		kv_block_id found;
		CHECK(kv_index_find(index, &entry->key, &found));
		CHECK(found.v == i);
		present++;
		children += entry->children;
		if (entry->parent != KV_BLOCK_NONE) {
			CHECK(index->entries[entry->parent].present);
			CHECK(index->entries[entry->parent].children > 0);
			if (index->entries[entry->parent].listed)
				CHECK(entry->listed);
			with_parent++;
		}
	}
	CHECK(present == index->present_count);
	CHECK(present == index->map.count);
	CHECK(children == with_parent);
	for (uint32_t i = index->oldest; i != KV_BLOCK_NONE; i = index->entries[i].newer) {
		CHECK(index->entries[i].listed);
		CHECK(walked < index->block_count);
		walked++;
	}
	CHECK(walked == listed);
}
