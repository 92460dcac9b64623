/* What only the tests of credentials need, who have no time to wait for a timer: nobody else includes this but credentials.c. */
#pragma once

#include "uploaders/aws/credentials.h"

/** What the timer does: begins to ask anew when it is time to by the clock. */
void credentials_tick(Credentials *c);
/** @return whether somebody is being asked just now */
bool credentials_is_fetching(const Credentials *c);
