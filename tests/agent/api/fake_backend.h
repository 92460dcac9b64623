/* An agent that never changes, but for a drain that is asked for: what the API's tests, the test
 * server and the fuzzer show. */
#pragma once

#include "agent/api/view.h"

/** `…-0000000000a1` shipping, `a2` delivered, `a3` quarantined (path not UTF-8), `a4` settling;
 * cancelling a2 is not possible. Each call counts in fake_backend_calls. @return static */
const AgentBackend *fake_backend(void);

#define FAKE_ID "neuron-core-dump-20260527T052100-0000000000a"

#define FAKE_SNAPSHOT "20260527T051233-1"

extern struct FakeCalls {
        unsigned view, list, get, act, flush, drain, snapshot;
        bool settle; /* of the last flush */
        bool on;     /* of the last drain */
        char last_id[BUNDLE_ID_SIZE], last_action[16];
        ViewFilter last_filter; /* texts are gone after the call */
} fake_calls;

/** Makes every call fail with this errno (negative) from now on; 0 = none. */
void fake_backend_fail(int error);
/** What it shows of a drain; NULL = there is none. */
void fake_backend_draining(const DrainView *d);
/** Whether it can deliver. */
void fake_backend_ready(bool ready);
