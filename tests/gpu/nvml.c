/* A stand-in for libnvidia-ml.so.1: the functions that NVIDIA's Python binding calls, without a card.
 *
 * Names, numbers and layouts are those of NVML's public interface (docs.nvidia.com/deploy/nvml-api, and the
 * binding's own declarations); how it is done is of this project. What it answers stands in the text file
 * that JOBLENS_NVML names, one "KEY VALUE…" per line, read again whenever it has changed:
 *
 *   driver error 9             every call ends so, and NVML must be opened again afterwards
 *   hang 1                     no call returns for as long as this stands there
 *   count 4
 *   2.error 15                 every call about card 2 ends so
 *   0.uuid GPU-…   0.power 191430   0.field.82 60   0.gpm 1   0.gpm.2 55.5   0.compute PID BYTES
 *   0.1.uuid MIG-…             the second instance of card 0
 *   xid 7 0 79                 the seventh event: Xid 79 on card 0
 *
 * A key that is not there is not supported; the value "error N" is an error of this call alone.
 * With -DOLD it lacks what came later than 2016 or so; with -DANCIENT it cannot even be opened.
 */
#define _GNU_SOURCE
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, NO_DRIVER = 9,
    TIMEOUT = 10
};
enum { CARDS = 64, PARTS = 8, LINES = 8192, SLOTS = 4 * LINES };

typedef unsigned long long u64;
typedef struct { int card, part; } Device;  /* part: -1 for the card itself */
typedef struct { u64 total, free, used; } Memory;
typedef struct { unsigned version; u64 total, reserved, free, used; } Memory2;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned version, sensor; int celsius; } Temperature;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char text[32]; } Pci;
typedef struct { unsigned pid; u64 memory; unsigned part, compute; } Process;
typedef struct { unsigned pid; u64 time; unsigned sm, memory, encoder, decoder; } Usage;
typedef union { double d; unsigned ui; unsigned long ul; u64 ull; long long sll; int si; unsigned short us; } Value;
typedef struct { unsigned field, scope; long long time, latency; unsigned type; int result; Value value; } Field;
typedef struct { Device *device; u64 type, data; unsigned part, compute; } Event;
typedef struct { unsigned version, supported; } GpmSupport;
typedef struct { char owner[48]; int serial; } Sample;
typedef struct { unsigned id; int result; double value; const char *names[3]; } Metric;
typedef struct { unsigned version, count; Sample *first, *second; Metric metrics[]; } Metrics;

static struct { char key[48], value[160]; } lines[LINES];
static int slots[SLOTS];  /* by the key's hash: its first line, counted from 1 */
static int line_count, is_open, samples_alive, sets_alive, registered[CARDS];
static Device devices[CARDS][PARTS + 1];

static int *slot_of(const char *key)
{
    unsigned hash = 5381;
    for (const char *c = key; *c; c++)
        hash = hash * 33 + (unsigned char)*c;
    while (slots[hash % SLOTS] && strcmp(lines[slots[hash % SLOTS] - 1].key, key) != 0)
        hash++;
    return &slots[hash % SLOTS];
}

static void load(void)
{
    static struct stat before;
    struct stat now;
    const char *path = getenv("JOBLENS_NVML");
    FILE *file;
    if (!path || stat(path, &now) != 0) {
        line_count = 0;
        memset(&before, 0, sizeof before);
        return;
    }
    if (now.st_ino == before.st_ino && now.st_size == before.st_size
        && now.st_mtim.tv_sec == before.st_mtim.tv_sec && now.st_mtim.tv_nsec == before.st_mtim.tv_nsec)
        return;
    before = now;
    line_count = 0;
    if (!(file = fopen(path, "re")))
        return;
    memset(slots, 0, sizeof slots);
    while (line_count < LINES
           && fscanf(file, "%47s %159[^\n]", lines[line_count].key, lines[line_count].value) == 2) {
        int *slot = slot_of(lines[line_count++].key);
        *slot = *slot ? *slot : line_count;
    }
    fclose(file);
}

/* The value at the key. */
static const char *find(const char *key)
{
    int first = *slot_of(key);
    return first && line_count ? lines[first - 1].value : NULL;
}

/* The same from a line on, for keys that occur more than once; where it stands is left in *from. */
static const char *find_next(const char *key, int *from)
{
    if (!find(key))
        return NULL;
    for (; *from < line_count; ++*from)
        if (strcmp(lines[*from].key, key) == 0)
            return lines[*from].value;
    return NULL;
}

static int error_in(const char *value)
{
    int code = 0;
    if (!value)
        return NOT_SUPPORTED;
    sscanf(value, "error %d", &code);
    return code;
}

static int check(Device *device)
{
    char key[48];
    const char *value;
    load();
    for (; line_count && find("hang"); load())
        usleep(5000);
    value = find("driver");
    if (line_count == 0 || (value && error_in(value))) {
        is_open = 0;
        return line_count ? error_in(value) : NO_DRIVER;
    }
    if (!is_open)
        return UNINITIALIZED;
    if (!device)
        return OK;
    snprintf(key, sizeof key, "%d.error", device->card);
    value = find(key);
    return value ? atoi(value) : OK;
}

static void name(Device *device, const char *field, char key[48])
{
    if (device->part < 0)
        snprintf(key, 48, "%d.%s", device->card, field);
    else
        snprintf(key, 48, "%d.%d.%s", device->card, device->part, field);
}

static int text_of_checked(Device *device, const char *field, const char **value)
{
    char key[48];
    name(device, field, key);
    *value = find(key);
    return error_in(*value);
}

static int text(Device *device, const char *field, const char **value)
{
    int code = check(device);
    return code ? code : text_of_checked(device, field, value);
}

static int number(Device *device, const char *field, unsigned *into)
{
    const char *value;
    int code = text(device, field, &value);
    if (!code)
        *into = (unsigned)strtoul(value, NULL, 10);
    return code;
}

static int number64(Device *device, const char *field, u64 *into)
{
    const char *value;
    int code = text(device, field, &value);
    if (!code)
        *into = strtoull(value, NULL, 10);
    return code;
}

static int words(Device *device, const char *field, char *into, unsigned size)
{
    const char *value;
    int code = text(device, field, &value);
    if (code)
        return code;
    if (strlen(value) >= size)
        return TOO_SMALL;
    strcpy(into, value);
    return OK;
}

/* For the tests: what was allocated and not given back, and how large structures are here. */
int standin_alive(void) { return samples_alive + sets_alive; }

int standin_size(const char *what)
{
    struct { const char *name; size_t size; } sizes[] = {
        {"c_nvmlMemory_t", sizeof(Memory)}, {"c_nvmlMemory_v2_t", sizeof(Memory2)},
        {"c_nvmlUtilization_t", sizeof(Utilization)}, {"c_nvmlTemperature_v1_t", sizeof(Temperature)},
        {"nvmlPciInfo_t", sizeof(Pci)}, {"c_nvmlProcessInfo_v3_t", sizeof(Process)},
        {"c_nvmlProcessUtilizationSample_t", sizeof(Usage)}, {"c_nvmlFieldValue_t", sizeof(Field)},
        {"c_nvmlEventData_t", sizeof(Event)}, {"c_nvmlGpmSupport_t", sizeof(GpmSupport)},
        {"c_nvmlGpmMetric_t", sizeof(Metric)},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (strcmp(sizes[i].name, what) == 0)
            return (int)sizes[i].size;
    return -1;
}

#ifndef ANCIENT
int nvmlInitWithFlags(unsigned flags)
{
    int code;
    (void)flags;
    is_open = 1;
    code = check(NULL);
    for (int card = 0; card < CARDS; card++)
        for (int part = -1; part < PARTS; part++)
            devices[card][part + 1] = (Device){card, part};
    return code;
}
#endif

int nvmlShutdown(void)
{
    int code = check(NULL);
    is_open = 0;
    memset(registered, 0, sizeof registered);
    return code;
}

const char *nvmlErrorString(int code) { (void)code; return "an error of the stand-in"; }

int nvmlDeviceGetCount_v2(unsigned *count)
{
    int code = check(NULL);
    const char *value = find("count");
    *count = value ? (unsigned)atoi(value) : 0;
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device)
{
    unsigned count;
    int code = nvmlDeviceGetCount_v2(&count);
    if (code)
        return code;
    if (index >= count || index >= CARDS)
        return INVALID;
    *device = &devices[index][0];
    return check(*device);
}

int nvmlDeviceGetUUID(Device *d, char *into, unsigned size) { return words(d, "uuid", into, size); }
int nvmlDeviceGetName(Device *d, char *into, unsigned size) { return words(d, "name", into, size); }
int nvmlDeviceGetMinorNumber(Device *d, unsigned *into) { return number(d, "minor", into); }

int nvmlDeviceGetPciInfo_v3(Device *device, Pci *pci)
{
    int code = words(device, "bus", pci->text, sizeof pci->text);
    if (!code)
        sscanf(pci->text, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
    return code;
}

int nvmlDeviceGetUtilizationRates(Device *device, Utilization *into)
{
    const char *value;
    int code = text(device, "busy", &value);
    return code ? code : sscanf(value, "%u %u", &into->gpu, &into->memory) == 2 ? OK : INVALID;
}

int nvmlDeviceGetPowerUsage(Device *d, unsigned *into) { return number(d, "power", into); }
int nvmlDeviceGetEnforcedPowerLimit(Device *d, unsigned *into) { return number(d, "limit", into); }
int nvmlDeviceGetFanSpeed(Device *d, unsigned *into) { return number(d, "fan", into); }

int nvmlDeviceGetClockInfo(Device *device, unsigned type, unsigned *into)
{
    return number(device, type == 1 ? "clock" : type == 2 ? "memory_clock" : "other_clock", into);
}

int nvmlDeviceGetTemperature(Device *device, unsigned sensor, unsigned *into)
{
    return sensor ? INVALID : number(device, "temperature", into);
}

int nvmlDeviceGetPcieThroughput(Device *device, unsigned counter, unsigned *into)
{
    return number(device, counter ? "bus_receive" : "bus_transmit", into);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(Device *d, u64 *into) { return number64(d, "reasons", into); }

/* "TOTAL RESERVED USED": the older of the two counts what the driver keeps as used. */
static int memory(Device *device, Memory2 *into)
{
    const char *value;
    int code = text(device, "memory", &value);
    if (code)
        return code;
    if (sscanf(value, "%llu %llu %llu", &into->total, &into->reserved, &into->used) != 3)
        return INVALID;
    into->free = into->total - into->reserved - into->used;
    return OK;
}

int nvmlDeviceGetMemoryInfo(Device *device, Memory *into)
{
    Memory2 found;
    int code = memory(device, &found);
    if (!code)
        *into = (Memory){found.total, found.free, found.total - found.free};
    return code;
}

/* Lines "PID BYTES", where - stands for memory that is not told. */
static int processes(Device *device, const char *kind, unsigned *count, Process *into)
{
    char key[48], bytes[32];
    int code = check(device), room = into ? (int)*count : 0, found = 0;
    if (code)
        return code;
    name(device, kind, key);
    for (int i = 0; find_next(key, &i); i++, found++) {
        unsigned pid = 0;
        if (error_in(lines[i].value))
            return error_in(lines[i].value);
        sscanf(lines[i].value, "%u %31s", &pid, bytes);
        if (found < room)
            into[found] = (Process){
                pid, *bytes == '-' ? ULLONG_MAX : strtoull(bytes, NULL, 10), UINT_MAX, UINT_MAX};
    }
    *count = (unsigned)found;
    return found > room ? TOO_SMALL : OK;
}

int nvmlDeviceGetComputeRunningProcesses_v2(Device *d, unsigned *n, Process *p) { return processes(d, "compute", n, p); }
int nvmlDeviceGetGraphicsRunningProcesses_v2(Device *d, unsigned *n, Process *p) { return processes(d, "graphics", n, p); }

#ifndef OLD
int nvmlDeviceGetComputeRunningProcesses_v3(Device *d, unsigned *n, Process *p) { return processes(d, "compute", n, p); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(Device *d, unsigned *n, Process *p) { return processes(d, "graphics", n, p); }
int nvmlDeviceGetMPSComputeRunningProcesses_v3(Device *d, unsigned *n, Process *p) { return processes(d, "mps", n, p); }

/* Lines "PID TIME SM MEMORY": those newer than `since`. */
int nvmlDeviceGetProcessUtilization(Device *device, Usage *into, unsigned *count, u64 since)
{
    char key[48];
    int code = check(device), room = into ? (int)*count : 0, found = 0;
    if (code)
        return code;
    name(device, "usage", key);
    for (int i = 0; find_next(key, &i); i++) {
        Usage usage = {0};
        if (sscanf(lines[i].value, "%u %llu %u %u", &usage.pid, &usage.time, &usage.sm, &usage.memory) != 4)
            return NOT_SUPPORTED;
        if (usage.time <= since)
            continue;
        if (found < room)
            into[found] = usage;
        found++;
    }
    *count = (unsigned)found;
    return !found ? NOT_FOUND : found > room ? TOO_SMALL : OK;
}

int nvmlDeviceGetMemoryInfo_v2(Device *device, Memory2 *into)
{
    return into->version == (sizeof(Memory2) | 2 << 24) ? memory(device, into) : 25;
}

int nvmlDeviceGetTemperatureV(Device *device, Temperature *into)
{
    unsigned celsius = 0;
    int code = into->version == (sizeof(Temperature) | 1 << 24) ? number(device, "temperature", &celsius) : 25;
    into->celsius = (int)celsius;
    return code;
}

int nvmlDeviceGetTotalEnergyConsumption(Device *d, u64 *into) { return number64(d, "energy", into); }
int nvmlDeviceGetCurrentClocksEventReasons(Device *d, u64 *into) { return number64(d, "reasons", into); }

int nvmlDeviceGetFieldValues(Device *device, int count, Field *fields)
{
    int code = check(device);
    for (int i = 0; i < count && !code; i++) {
        Field *it = &fields[i];
        char field[24];
        const char *value = NULL;
        int is_link = it->field == 138 || it->field == 139;
        snprintf(field, sizeof field, "field.%u", it->field);
        it->result = is_link && it->scope != UINT_MAX ? NOT_SUPPORTED : text_of_checked(device, field, &value);
        it->type = it->field == 82 ? 1 : 3;
        it->value.ull = it->result ? 0 : strtoull(value, NULL, 10);
    }
    return code;
}

int nvmlDeviceGetMigMode(Device *device, unsigned *now, unsigned *pending)
{
    *pending = 0;
    return number(device, "mig", now);
}

int nvmlDeviceGetMaxMigDeviceCount(Device *device, unsigned *count)
{
    *count = PARTS - 1;
    return check(device);
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device *device, unsigned index, Device **into)
{
    const char *value;
    if (index >= PARTS)
        return INVALID;
    *into = &devices[device->card][index + 1];
    return text(*into, "uuid", &value) == NOT_SUPPORTED ? NOT_FOUND : check(device);
}

int nvmlDeviceGetGpuInstanceId(Device *d, unsigned *into) { return number(d, "instance", into); }
int nvmlDeviceGetComputeInstanceId(Device *d, unsigned *into) { return number(d, "compute_instance", into); }

int nvmlGpmQueryDeviceSupport(Device *device, GpmSupport *into)
{
    return into->version == 1 ? number(device, "gpm", &into->supported) : 25;
}

int nvmlGpmSampleAlloc(Sample **into)
{
    *into = calloc(1, sizeof **into);
    samples_alive++;
    return OK;
}

int nvmlGpmSampleFree(Sample *sample)
{
    free(sample);
    samples_alive--;
    return OK;
}

int nvmlGpmSampleGet(Device *device, Sample *sample)
{
    static int serial;
    int code = check(device);
    name(device, "", sample->owner);
    sample->serial = ++serial;
    return code;
}

int nvmlGpmMigSampleGet(Device *device, unsigned instance, Sample *sample)
{
    for (int part = 0; part < PARTS; part++) {
        Device *it = &devices[device->card][part + 1];
        unsigned found;
        if (number(it, "instance", &found) == OK && found == instance)
            return nvmlGpmSampleGet(it, sample);
    }
    return NOT_FOUND;
}

int nvmlGpmMetricsGet(Metrics *metrics)
{
    Sample *first = metrics->first, *second = metrics->second;
    if (metrics->version != 1 || strcmp(first->owner, second->owner) || first->serial >= second->serial)
        return INVALID;
    for (unsigned i = 0; i < metrics->count; i++) {
        char key[64];
        const char *value;
        snprintf(key, sizeof key, "%sgpm.%u", second->owner, metrics->metrics[i].id);
        value = find(key);
        metrics->metrics[i].result = error_in(value);
        metrics->metrics[i].value = value ? strtod(value, NULL) : 0;
    }
    return OK;
}

int nvmlEventSetCreate(void **set)
{
    int code = check(NULL);
    if (!code) {
        *set = malloc(1);
        sets_alive++;
    }
    return code;
}

int nvmlEventSetFree(void *set)
{
    free(set);
    sets_alive--;
    return OK;
}

int nvmlDeviceRegisterEvents(Device *device, u64 types, void *set)
{
    unsigned can;
    int code = number(device, "events", &can);
    (void)set;
    if (!code)
        registered[device->card] = types == 8;
    return code;
}

/* The next event by its number, of cards that were registered. With 0 ms as the timeout only: it never waits. */
int nvmlEventSetWait_v2(void *set, Event *event, unsigned milliseconds)
{
    static long long delivered;
    int code = check(NULL);
    (void)set;
    if (code || milliseconds)
        return code ? code : INVALID;
    for (int i = 0; find_next("xid", &i); i++) {
        long long sequence;
        unsigned card, xid;
        if (sscanf(lines[i].value, "%lld %u %u", &sequence, &card, &xid) != 3 || card >= CARDS)
            return INVALID;
        if (sequence > delivered && registered[card]) {
            delivered = sequence;
            *event = (Event){&devices[card][0], 8, xid, UINT_MAX, UINT_MAX};
            return OK;
        }
    }
    return TIMEOUT;
}
#endif
