/*
 * The store in a file. Readers take no lock: the file they open is whole, because writers build
 * PATH.tmp, flush it and rename it into place. Writers hold a flock on PATH.lock, which is never
 * replaced itself, so that two of them cannot lock two different files.
 */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/check.h"
#include "net/store.h"

/* Of the whole file: all records, with room for their line ends. */
#define FILE_BYTES_MAX ((uint64_t)STORE_RECORDS_MAX * 1024)

struct store_file {
	struct store store;
	char *path, *path_tmp, *path_lock, *folder;
};

static struct store_file *file_of(struct store *store)
{
	return container_of(store, struct store_file, store);
}

static int file_stamp(struct store *store, uint64_t *ret_stamp)
{
	struct stat found;
	if (stat(file_of(store)->path, &found))
		return -errno;
	/* A replaced file is another inode; one edited in place has another time or size. */
	*ret_stamp = (uint64_t)found.st_mtim.tv_sec * UINT64_C(1000000007) +
		     (uint64_t)found.st_mtim.tv_nsec + (uint64_t)found.st_size * UINT64_C(0x9e3779b97f4a7c15) +
		     (uint64_t)found.st_ino * UINT64_C(0xbf58476d1ce4e5b9);
	return 0;
}

static int read_all(int fd, struct buf *text)
{
	for (;;) {
		char *room = buf_reserve(text, 65536);
		if (!room)
			return text->bytes >= FILE_BYTES_MAX / 2 ? -EFBIG : -ENOMEM;
		ssize_t bytes = read(fd, room, 65536);
		if (bytes < 0 && errno == EINTR)
			continue;
		if (bytes <= 0)
			return bytes ? -errno : 0;
		text->bytes += (size_t)bytes;
	}
}

static int parse(struct buf *text, struct store_table *table)
{
	char *save = NULL;
	int result = 0;
	buf_append(text, "", 1); /* a NUL byte inside ends the text early, and the next check fails */
	if (text->failed)
		return -ENOMEM;
	if (strlen(text->data) != text->bytes - 1)
		return -EBADMSG;
	for (char *line = strtok_r(text->data, "\n", &save); line && !result;
	     line = strtok_r(NULL, "\n", &save)) {
		uint32_t before = table->count;
		result = store_table_put(table, line);
		if (!result && table->count == before)
			result = -EBADMSG; /* the same id twice */
		if (!result)
			table->records[before].changed = false;
	}
	return result;
}

static int file_read(struct store *store, struct store_table *ret_table)
{
	struct buf text;
	int fd = open(file_of(store)->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return -errno;
	buf_init(&text, FILE_BYTES_MAX);
	int result = read_all(fd, &text);
	close(fd);
	if (!result)
		result = parse(&text, ret_table);
	if (result)
		store_table_fini(ret_table);
	buf_fini(&text);
	return result;
}

static int write_all(int fd, const char *data, size_t bytes)
{
	while (bytes) {
		ssize_t written = write(fd, data, bytes);
		if (written < 0 && errno == EINTR)
			continue;
		if (written < 0)
			return -errno;
		data += written;
		bytes -= (size_t)written;
	}
	return 0;
}

/* Whoever edits the file, the daemon that reads it must still be able to. */
static int keep_owner(const struct store_file *file, int fd)
{
	struct stat old, new;
	if (stat(file->path, &old))
		return errno == ENOENT ? 0 : -errno;
	if (fstat(fd, &new))
		return -errno;
	if (old.st_uid == new.st_uid && old.st_gid == new.st_gid)
		return 0;
	return fchown(fd, old.st_uid, old.st_gid) ? -errno : 0;
}

static int sync_folder(const char *folder)
{
	int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	int result = fsync(fd) ? -errno : 0;
	close(fd);
	return result;
}

static int replace(const struct store_file *file, const struct store_table *table)
{
	struct buf text;
	int fd = -1, result = 0;
	buf_init(&text, FILE_BYTES_MAX);
	for (uint32_t i = 0; i < table->count; i++) {
		buf_append_text(&text, table->records[i].value);
		buf_append(&text, "\n", 1);
	}
	if (text.failed)
		result = -EFBIG;
	/* What a killed writer left is ours to remove: we hold the lock. */
	if (!result && unlink(file->path_tmp) && errno != ENOENT)
		result = -errno;
	if (!result) {
		fd = open(file->path_tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
		result = fd < 0 ? -errno : keep_owner(file, fd);
	}
	if (!result)
		result = write_all(fd, text.data ? text.data : "", text.bytes);
	if (!result && fsync(fd))
		result = -errno;
	if (!result && rename(file->path_tmp, file->path))
		result = -errno;
	if (fd >= 0)
		close(fd);
	if (!result)
		result = sync_folder(file->folder);
	buf_fini(&text);
	return result;
}

static int file_update(struct store *store, store_change change, void *context)
{
	struct store_file *file = file_of(store);
	struct store_table table = { 0 };
	int lock = open(file->path_lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (lock < 0)
		return -errno;
	int result;
	do
		result = flock(lock, LOCK_EX) ? -errno : 0;
	while (result == -EINTR);
	if (!result)
		result = file_read(store, &table);
	if (result == -ENOENT)
		result = 0;
	if (!result)
		result = change(&table, context);
	if (!result)
		result = replace(file, &table);
	store_table_fini(&table);
	close(lock);
	return result;
}

static void file_close(struct store *store)
{
	struct store_file *file = file_of(store);
	free(file->path);
	free(file->path_tmp);
	free(file->path_lock);
	free(file->folder);
	free(file);
}

static const struct store_ops file_ops = { file_stamp, file_read, file_update, file_close };

int store_file_open(const char *path, struct store **ret_store)
{
	struct store_file *file = calloc(1, sizeof *file);
	char *copy = strdup(path);
	if (!file || !copy) {
		free(copy);
		free(file);
		return -ENOMEM;
	}
	file->store.ops = &file_ops;
	file->path = strdup(path);
	file->folder = strdup(dirname(copy));
	free(copy);
	bool made = asprintf(&file->path_tmp, "%s.tmp", path) >= 0;
	if (!made)
		file->path_tmp = NULL;
	if (asprintf(&file->path_lock, "%s.lock", path) < 0) {
		file->path_lock = NULL;
		made = false;
	}
	if (!made || !file->path || !file->folder) {
		file_close(&file->store);
		return -ENOMEM;
	}
	*ret_store = &file->store;
	return 0;
}
