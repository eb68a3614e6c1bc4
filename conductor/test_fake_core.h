/* A core thread for tests of the fronts: answers submissions with scripted tokens. What it does
 * with a request is chosen by the request's `priority`, which has no effect of its own. */
#ifndef BATON_CONDUCTOR_TEST_FAKE_CORE_H
#define BATON_CONDUCTOR_TEST_FAKE_CORE_H

#include <stdatomic.h>

#include "conductor/bridge.h"
#include "model/model.h"

enum fake_script {
	FAKE_PLAIN,	  /* a token a message, at once */
	FAKE_SILENT,	  /* nothing ever comes */
	FAKE_FAIL,	  /* an error at once */
	FAKE_FAIL_LATER,  /* an error after three tokens */
	FAKE_SLOW,	  /* a token every few milliseconds */
	FAKE_BURST,	  /* all tokens in one message */
	FAKE_STRAY,	  /* like PLAIN, then tokens that nobody waits for */
};

struct fake_core;

/* @text: what every answer consists of, repeated as needed. @slow_ms: between tokens of SLOW. */
struct fake_core *fake_core_start(struct bridge *bridge, const struct model *model,
				  const char *text, uint32_t slow_ms);
void fake_core_stop(struct fake_core *core);
uint32_t fake_core_cancels(struct fake_core *core);
uint32_t fake_core_stops(struct fake_core *core);
/* The last spec submitted; its prompt is not kept. */
struct request_spec fake_core_last(struct fake_core *core);

#endif
