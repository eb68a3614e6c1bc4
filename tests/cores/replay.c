/* Gives every file of a folder to a fuzz target, so that its corpus is a normal test. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static int replay(const char *path)
{
	/* Read into a block of its exact size, so that a sanitizer sees one byte too far. */
	FILE *file = fopen(path, "rb");
	if (!file || fseek(file, 0, SEEK_END) < 0)
		return -1;
	long bytes = ftell(file);
	uint8_t *data = malloc(bytes ? (size_t)bytes : 1);
	rewind(file);
	int r = data && fread(data, 1, (size_t)bytes, file) == (size_t)bytes ? 0 : -1;
	fclose(file);
	if (r == 0)
		(void)LLVMFuzzerTestOneInput(data, (size_t)bytes);
	free(data);
	return r;
}

int main(int argc, char **argv)
{
	DIR *folder = argc > 1 ? opendir(argv[1]) : NULL;
	struct dirent *entry;
	char path[4096];
	int count = 0;

	while (folder && (entry = readdir(folder))) {
		if (entry->d_name[0] == '.')
			continue;
		snprintf(path, sizeof path, "%s/%s", argv[1], entry->d_name);
		if (replay(path) < 0) {
			fprintf(stderr, "%s cannot be read\n", path);
			return 1;
		}
		count++;
	}
	if (folder)
		closedir(folder);
	printf("%d inputs\n", count);
	return count > 0 ? 0 : 1;
}
