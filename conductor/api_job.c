#include <stdlib.h>
#include <string.h>

#include "conductor/front_private.h"

/* Up to this a body is read in about a millisecond. */
#define JOB_INLINE_BYTES (32u << 10)

static void on_work(uv_work_t *work)
{
	struct api_job *job = work->data;
	job->run(job);
}

static void on_worked(uv_work_t *work, int status)
{
	struct api_job *job = work->data;
	free(job->copy);
	job->body = job->copy = NULL;
	job->done(job);
}

void api_job_start(struct api_job *job, struct front *front, const struct http_request *http,
		   void (*run)(struct api_job *), void (*done)(struct api_job *))
{
	job->run = run;
	job->done = done;
	job->body = http->body;
	job->body_bytes = http->body_bytes;
	job->work.data = job;
	if (job->body_bytes > JOB_INLINE_BYTES) {
		job->copy = malloc(job->body_bytes);
		if (job->copy) {
			memcpy(job->copy, http->body, job->body_bytes);
			job->body = job->copy;
			if (!uv_queue_work(&front->loop, &job->work, on_work, on_worked))
				return;
		}
	}
	job->run(job);
	free(job->copy);
	job->copy = NULL;
	job->done(job);
}
