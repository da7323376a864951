/* Text files compiled into the program (cmake/EmbedText.cmake): tables end with name == NULL, and
 * each text is followed by a zero byte that size_bytes does not count. */
#ifndef BT_CMAKE_EMBEDDED_H
#define BT_CMAKE_EMBEDDED_H

#include <stddef.h>

struct bt_embedded {
    const char *name; /* path relative to the folder that embeds it */
    const char *text;
    size_t size_bytes;
};

#endif
