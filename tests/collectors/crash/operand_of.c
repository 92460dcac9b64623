/* operand_of: says of each line of hexadecimal code which operand in memory it has, or to which
 * register's address it jumps. */
#include <stdio.h>

#include "collectors/crash/x86/x86_operand.h"

int main(void) {
        char line[256];
        while (fgets(line, sizeof line, stdin)) {
                uint8_t code[16];
                size_t n = 0;
                int used;
                unsigned byte;
                for (char *p = line; n < sizeof code && sscanf(p, "%2x%n", &byte, &used) == 1;
                     p += used)
                        code[n++] = (uint8_t)byte;
                X86Operand o;
                int jump = x86_jump_register(code, n);
                if (jump >= 0)
                        printf("jump %d\n", jump);
                else if (x86_operand_decode(code, n, &o))
                        printf("%d %d %u %d\n", o.base, o.index, o.shift, o.displacement);
                else
                        printf("-\n");
        }
        return 0;
}
