/* What a restart finds after SIGKILL, and in files that were cut, flipped, swapped or made up. */
#include "pool/test_ssd_support.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define SLOTS 8u
#define SEGMENT (PAGE + SLOTS * SLOT)

static bool with_threads(void **state)
{
	return *state != NULL;
}

/* ---- SIGKILL ---- */

#define NUMBERS 4096u
#define ROUNDS 50

struct shared { /* with the process that is killed */
	uint8_t submitted[NUMBERS], done[NUMBERS], gone[NUMBERS];
	uint32_t next;
	_Atomic bool ready;
};

static void child_run(struct box *box, struct shared *shared)
{
	char error[256];
	uint64_t sums[3];
	bool ready = false;

	log_init("child", LOG_ERROR);
	CHECK(!ssd_open(&box->config, &box->ssd, error, sizeof error));
	for (;;) {
		struct ssd_event event;
		while (ssd_poll(box->ssd, &event)) {
			ready = ready || event.kind == SSD_READY;
			atomic_store(&shared->ready, ready);
			if (event.kind == SSD_PUT && !event.status)
				shared->done[event.user] = 1;
			for (uint32_t i = 1; event.kind == SSD_EVICTED && i < NUMBERS; i++) {
				struct kv_key key = key_of(i);
				if (kv_key_equal(&key, &event.key))
					shared->gone[i] = 1;
			}
		}
		struct pollfd wait = { box->wake, POLLIN, 0 };
		uint64_t count;
		if (poll(&wait, 1, 1) > 0)
			(void)!read(box->wake, &count, sizeof count);
		while (ready && shared->next < NUMBERS) {
			uint32_t number = shared->next;
			struct kv_key key = key_of(number);
			uint8_t *block = box_buffer(box, number % BUFFERS);
			block_fill(number, block);
			block_sums(block, sums);
			if (ssd_put(box->ssd, &key, NULL, sums, block, number))
				break;
			shared->submitted[number] = 1;
			shared->next++;
		}
	}
}

/* Everything that had been reported done and not evicted is there; everything that is there is right;
 * nothing else is. @lost_max: evictions that the dead process had not heard of. */
static void check_survivors(struct box *box, struct shared *shared, uint32_t lost_max)
{
	uint32_t lost = 0;

	for (uint32_t i = 1; i < NUMBERS; i++) {
		bool there = box_has(box, i);
		if (!there) {
			lost += shared->done[i] && !shared->gone[i];
			shared->gone[i] = 1;
			continue;
		}
		/* ssd_put() had been called: it may not have lived to note that. */
		assert_true(shared->submitted[i] || i == shared->next);
		assert_int_equal(box_get(box, i), 0);
	}
	assert_true(lost <= lost_max);
	assert_int_equal(box_stats(box).corrupt, 0);
}

static void kill_rounds(struct box *box, uint32_t lost_max)
{
	uint64_t random = 11;
	struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
				     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(shared, MAP_FAILED);
	shared->next = 1;
	uint32_t progress = 0;
	for (int round = 0; round < ROUNDS / 2; round++) {
		atomic_store(&shared->ready, false);
		fflush(NULL);
		pid_t child = fork();
		assert_true(child >= 0);
		if (!child) {
			child_run(box, shared);
			_exit(1);
		}
		/* One in four may die while it scans; the others on a busy machine get as far as to put. */
		for (int i = 0; i < 5000 && round % 4 && !atomic_load(&shared->ready); i++)
			usleep(1000);
		usleep((useconds_t)(rand_next(&random) % 25000));
		kill(child, SIGKILL);
		assert_int_equal(waitpid(child, NULL, 0), child);
		box_open(box);
		check_survivors(box, shared, lost_max);
		assert_true(folder_bytes(box->path) <= box->config.bytes);
		box_close(box);
		/* What was killed on its way may be put again. */
		for (uint32_t i = 1; i < NUMBERS; i++)
			progress += shared->done[i];
		if (shared->next > NUMBERS * 3 / 4) {
			folder_empty(box->path);
			memset(shared, 0, sizeof *shared);
			shared->next = 1;
		}
	}
	assert_true(progress > 0);
	munmap(shared, sizeof *shared);
}

static void test_kill(void **state)
{
	struct box box;
	box_new(&box, with_threads(state));
	box.config.bytes = UINT64_C(100) << 20; /* nothing is evicted */
	kill_rounds(&box, 0);
	box_free(&box);
}

static void test_kill_evicting(void **state)
{
	struct box box;
	box_new(&box, with_threads(state));
	box.config.bytes = 5 * SEGMENT;
	kill_rounds(&box, box.config.queue_depth);
	box_free(&box);
}

/* ---- damage ---- */

struct image {
	uint8_t bytes[2][SEGMENT]; /* segments 0 and 1, with blocks 1..8 and 9..16 */
};

static int segment_fd(const struct box *box, int segment)
{
	char name[256];
	snprintf(name, sizeof name, "%s/segment-%08d.baton", box->path, segment);
	int fd = open(name, O_RDWR | O_CREAT, 0600);
	assert_true(fd >= 0);
	return fd;
}

static void segment_write(const struct box *box, int segment, const uint8_t *bytes, size_t count)
{
	int fd = segment_fd(box, segment);
	assert_int_equal(ftruncate(fd, 0), 0);
	assert_int_equal(write(fd, bytes, count), count);
	close(fd);
}

static struct image *image_make(struct box *box)
{
	struct image *image = malloc(sizeof *image);
	assert_non_null(image);
	box->config.bytes = 2 * SEGMENT;
	box_open(box);
	for (uint64_t i = 1; i <= 2 * SLOTS; i++)
		assert_int_equal(box_put(box, i, i - 1), 0);
	box_close(box);
	for (int i = 0; i < 2; i++) {
		int fd = segment_fd(box, i);
		assert_int_equal(read(fd, image->bytes[i], SEGMENT), SEGMENT);
		close(fd);
	}
	return image;
}

static void image_restore(const struct box *box, const struct image *image)
{
	for (int i = 0; i < 2; i++)
		segment_write(box, i, image->bytes[i], SEGMENT);
}

/* Gets all blocks: block i as outcomes[i - 1] says. Then the tier still works. */
static void check_outcomes(struct box *box, const int outcomes[2 * SLOTS])
{
	uint32_t adopted = 0, corrupt = 0;

	box_open(box);
	for (uint32_t i = 0; i < 2 * SLOTS; i++) {
		adopted += outcomes[i] != -ENOENT;
		corrupt += outcomes[i] == BATON_ECHECKSUM;
		assert_int_equal(box_get(box, i + 1), outcomes[i]);
	}
	assert_int_equal(box->count[SSD_ADOPTED], adopted);
	assert_int_equal(box_stats(box).corrupt, corrupt);
	/* A corrupt block is gone, for the next life too. */
	for (uint32_t i = 0; i < 2 * SLOTS; i++)
		assert_int_equal(box_has(box, i + 1), outcomes[i] == 0);
	for (uint32_t i = 0; i < 2 * SLOTS; i++)
		assert_int_equal(box_put(box, i + 1, i), outcomes[i] ? 0 : -EEXIST);
	for (uint32_t i = 0; i < 2 * SLOTS; i++)
		assert_int_equal(box_get(box, i + 1), 0);
	assert_true(folder_bytes(box->path) <= box->config.bytes);
	box_close(box);
}

static void test_cut(void **state)
{
	struct box box;
	uint64_t random = 5;

	box_new(&box, with_threads(state));
	struct image *image = image_make(&box);
	for (uint32_t n = 0; n <= SEGMENT / PAGE + 40; n++) {
		size_t cut = n <= SEGMENT / PAGE ? n * PAGE : rand_next(&random) % SEGMENT;
		int outcomes[2 * SLOTS] = { 0 };
		for (uint32_t i = 0; i < SLOTS; i++)
			if (cut < (1 + SLOTS) * PAGE + (i + 1) * BLOCK)
				outcomes[i] = -ENOENT;
		image_restore(&box, image);
		segment_write(&box, 0, image->bytes[0], cut);
		check_outcomes(&box, outcomes);
		folder_empty(box.path); /* growth may have made others */
	}
	free(image);
	box_free(&box);
}

static void flip_at(struct box *box, const struct image *image, uint32_t at)
{
	int outcomes[2 * SLOTS] = { 0 };

	image_restore(box, image);
	int fd = segment_fd(box, 0);
	uint8_t byte = image->bytes[0][at] ^ (uint8_t)(1 << at % 8);
	assert_int_equal(pwrite(fd, &byte, 1, at), 1);
	close(fd);
	if (at >= (1 + SLOTS) * PAGE)
		outcomes[(at - (1 + SLOTS) * PAGE) / BLOCK] = BATON_ECHECKSUM;
	else if (at >= PAGE)
		outcomes[at / PAGE - 1] = -ENOENT;
	check_outcomes(box, outcomes);
}

static void test_flip(void **state)
{
	struct box box;
	uint64_t random = 6;

	box_new(&box, with_threads(state));
	struct image *image = image_make(&box);
	for (uint32_t page = 0; page < SEGMENT / PAGE; page++)
		flip_at(&box, image, page * PAGE + (uint32_t)(rand_next(&random) % PAGE));
	for (uint32_t at = 0; at < 160; at += 7) {
		flip_at(&box, image, at);		 /* the first page */
		flip_at(&box, image, 3 * PAGE + at); /* a header */
	}
	flip_at(&box, image, PAGE - 1);
	flip_at(&box, image, 4 * PAGE - 1);
	free(image);
	box_free(&box);
}

/* Bytes that are right in themselves, in the wrong place. */
static void test_astray(void **state)
{
	struct box box;

	box_new(&box, with_threads(state));
	struct image *image = image_make(&box), *made = malloc(sizeof *made);
	assert_non_null(made);

	*made = *image; /* block 2's header in slot 2 (block 3's) as well */
	memcpy(made->bytes[0] + 3 * PAGE, made->bytes[0] + 2 * PAGE, PAGE);
	image_restore(&box, made);
	check_outcomes(&box, (int[16]){ [2] = -ENOENT });

	*made = *image; /* block 2's bytes in block 3's slot: a write that was lost */
	memcpy(made->bytes[0] + (1 + SLOTS) * PAGE + 2 * BLOCK, made->bytes[0] + (1 + SLOTS) * PAGE + BLOCK,
	       BLOCK);
	image_restore(&box, made);
	check_outcomes(&box, (int[16]){ [2] = BATON_ECHECKSUM });

	/* Files that changed names: what they say of themselves counts, nothing of them is known. */
	segment_write(&box, 0, image->bytes[1], SEGMENT);
	segment_write(&box, 1, image->bytes[0], SEGMENT);
	int none[16];
	for (int i = 0; i < 16; i++)
		none[i] = -ENOENT;
	check_outcomes(&box, none);
	free(made);
	free(image);
	box_free(&box);
}

static void test_garbage(void **state)
{
	struct box box;
	uint64_t random = 9;
	char name[256];

	box_new(&box, with_threads(state));
	struct image *image = image_make(&box), *made = malloc(sizeof *made);
	assert_non_null(made);
	for (int round = 0; round < 30; round++) {
		*made = *image;
		for (int i = 0; i < 4; i++) {
			uint32_t at = (uint32_t)(rand_next(&random) % SEGMENT);
			uint32_t count = (uint32_t)(rand_next(&random) % (3 * PAGE));
			count = MIN(count, SEGMENT - at);
			for (uint32_t j = 0; j < count; j++)
				made->bytes[i % 2][at + j] = (uint8_t)rand_next(&random);
		}
		image_restore(&box, made);
		snprintf(name, sizeof name, "%s/segment-00000007.baton", box.path);
		if (round % 3 == 0)
			assert_int_equal(mkdir(name, 0700), 0);
		else if (round % 3 == 1)
			assert_int_equal(symlink("/etc/passwd", name), 0);
		else
			segment_write(&box, 7, made->bytes[0] + PAGE + 5, (size_t)(rand_next(&random) % SEGMENT));
		segment_write(&box, 8, NULL, 0);
		box_open(&box);
		for (uint64_t i = 1; i <= 16; i++) {
			int error = box_get(&box, i); /* compares the bytes */
			assert_true(!error || error == -ENOENT || error == BATON_ECHECKSUM);
		}
		assert_int_equal(box_put(&box, 99, 0), 0);
		assert_int_equal(box_get(&box, 99), 0);
		ssd_check(box.ssd);
		box_close(&box);
		folder_empty(box.path);
	}
	free(made);
	free(image);
	box_free(&box);
}

#define BOTH(body) { #body " io_uring", body, NULL, NULL, NULL }, { #body " threads", body, NULL, NULL, (void *)1 }

int main(void)
{
	const struct CMUnitTest tests[] = {
		BOTH(test_kill), BOTH(test_kill_evicting), BOTH(test_cut),
		BOTH(test_flip), BOTH(test_astray),	   BOTH(test_garbage),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
