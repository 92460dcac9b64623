#include "hook/hook.h"

int main(int argc, char **argv) {
        return hook_main(argc, argv);
}
