/* When credentials are good, and when they are asked for again. Pure. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/** @param got_usec      when they came, CLOCK_REALTIME
 * @param expires_usec  0 = they do not expire
 * @return whether they are good for another minute, or, of those that were given for less than ten, for a tenth of their life */
bool credentials_schedule_is_good(uint64_t got_usec, uint64_t expires_usec, uint64_t now_usec);

/** @param random  spreads a fleet that started together over a tenth of the life
 * @return when to ask anew: at 70 to 80 % of their life, at the latest 5 min before its end; those that came with less than that left after
 * half of it, but not above a minute and not below a second. UINT64_MAX = never */
uint64_t credentials_schedule_refresh_usec(uint64_t got_usec, uint64_t expires_usec,
                                           uint64_t random);

/** @return the wait after the n-th failure in a row: 1 s, 2 s … 60 s; 0 for none */
uint64_t credentials_schedule_backoff_usec(unsigned n_failures);
