/* cmocka, with the headers that it wants before it. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Every test is called with a state, also one whose group has no fixture. */
#pragma GCC diagnostic ignored "-Wunused-parameter"
