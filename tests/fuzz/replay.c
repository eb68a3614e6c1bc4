/* Runs every file of the folders and files named through a fuzz target. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

#include "fuzz.h"

static unsigned replayed;

static void replay_file(const char *path)
{
	FILE *file = fopen(path, "rb");
	if (!file) {
		fprintf(stderr, "%s: %s\n", path, strerror(errno));
		exit(1);
	}
	uint8_t *data = NULL;
	size_t bytes = 0, capacity = 0;
	for (;;) {
		if (bytes == capacity) {
			capacity = capacity ? capacity * 2 : 4096;
			data = realloc(data, capacity);
			if (!data)
				abort();
		}
		size_t count = fread(data + bytes, 1, capacity - bytes, file);
		if (!count)
			break;
		bytes += count;
	}
	fclose(file);
	/* To the byte, so that a sanitizer sees a read beyond the end. */
	uint8_t *exact = malloc(bytes ? bytes : 1);
	if (!exact)
		abort();
	memcpy(exact, data, bytes);
	free(data);
	fprintf(stderr, "%s\n", path);
	(void)LLVMFuzzerTestOneInput(exact, bytes);
	free(exact);
	replayed++;
}

static void replay(const char *path)
{
	struct stat stat_;
	struct dirent **entries;
	if (stat(path, &stat_) < 0) {
		fprintf(stderr, "%s: %s\n", path, strerror(errno));
		exit(1);
	}
	if (!S_ISDIR(stat_.st_mode)) {
		replay_file(path);
		return;
	}
	int count = scandir(path, &entries, NULL, alphasort);
	for (int i = 0; i < count; i++) {
		char name[PATH_MAX];
		if (entries[i]->d_name[0] != '.' &&
		    (size_t)snprintf(name, sizeof(name), "%s/%s", path, entries[i]->d_name) <
			    sizeof(name))
			replay(name);
		free(entries[i]);
	}
	if (count >= 0)
		free(entries);
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		replay(argv[i]);
	printf("%u inputs\n", replayed);
	return replayed ? 0 : 1; /* an empty corpus tests nothing */
}
