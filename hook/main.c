/* The program neuron-dump: everything is in hook.c, which tests link without this file. */
#include "hook/hook.h"

int main(int argc, char **argv) {
        return hook_main(argc, argv);
}
