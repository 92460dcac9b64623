/* What is told of a copy: container-copy.json (docs/BUNDLE.md). */
#pragma once

#include "agent/containers_tree.h"
#include "lib/base/strbuf.h"

/** Writes it. @param n_files  that are there */
void about_compose(const TreeUnit *u, const CopyDocument *d, size_t n_files, StrBuf *ret);
