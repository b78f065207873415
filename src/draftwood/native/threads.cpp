// The pool of threads, the phases that they share, and memory in large pages.
#include "threads.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace draftwood {
namespace {
const int SPINS = 2000;          // looks at a counter before the processor is given to another thread
const int WAITS = 4000;          // looks for the next job before the thread sleeps
const size_t LARGE = 2u << 20;   // bytes of a large page

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// The threads of this process other than the caller. They are never ended: an exit of the process ends them.
struct Pool {
    pid_t process = getpid();
    std::mutex running, mutex;
    std::condition_variable changed;
    std::atomic<unsigned> number{0};  // of the present job
    Job* job = nullptr;  // the present one
    int threads = 1, asleep = 0;
    std::vector<std::unique_ptr<Job>> jobs;

    void work(int thread, unsigned seen) {
        for (;;) {
            for (int i = 0; i < WAITS && number.load(std::memory_order_acquire) == seen; i++) pause();
            JobUse mine;
            {
                std::unique_lock<std::mutex> lock(mutex);
                asleep++;
                changed.wait(lock, [&] { return number.load() != seen; });
                asleep--;
                seen = number.load();
                if (job) job->users++, mine.reset(job);
            }
            if (mine && thread < mine->threads) compute(*mine, thread);
        }
    }
};

Pool& pool() {
    static std::atomic<Pool*> present{nullptr};
    static std::mutex making;
    Pool* pool = present.load();
    if (pool && pool->process == getpid()) return *pool;
    std::lock_guard<std::mutex> lock(making);
    pool = present.load();
    if (!pool || pool->process != getpid()) present = pool = new Pool;  // after a fork its threads are gone
    return *pool;
}

// Large pages, which the system takes back as soon as they are free: an allocator would need twice their size for the next ones,
// so it would use none of those that were freed.
void* map_large(size_t bytes) {
#if defined(__linux__)
    char* mapped = (char*)mmap(nullptr, bytes + LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return nullptr;
    size_t before = (LARGE - (size_t)mapped % LARGE) % LARGE;
    if (before) munmap(mapped, before);
    munmap(mapped + before + bytes, LARGE - before);
    madvise(mapped + before, bytes, MADV_HUGEPAGE);
    return mapped + before;
#else
    return aligned_alloc(LARGE, bytes);
#endif
}

bool is_free(const Job& job) { return !job.users.load(std::memory_order_acquire); }
}  // namespace

size_t Buffer::whole(size_t bytes) {
    size_t unit = bytes < LARGE / 2 ? 64 : LARGE;
    return (bytes + unit - 1) / unit * unit;
}

void* Buffer::reserve(size_t bytes) {
    if (bytes <= bytes_) return start_;
    release();
    size_t size = whole(bytes);
    start_ = size < LARGE ? aligned_alloc(64, size) : map_large(size);
    if (!start_) throw std::bad_alloc();
    bytes_ = size;
    return start_;
}

void Buffer::release() {
#if defined(__linux__)
    if (bytes_ >= LARGE) munmap(std::exchange(start_, nullptr), bytes_);
#endif
    free(start_);
    start_ = nullptr;
    bytes_ = 0;
}

int claim(Job& job, int phase, int chunks, int thread, int done) {
    const int threads = job.threads;
    Counter* counters = &job.counters[(size_t)phase * threads];
    for (int i = 0; i < threads; i++) {
        int part = (thread + i) % threads, from = (long)chunks * part / threads, to = (long)chunks * (part + 1) / threads;
        if (counters[part].claimed.load(std::memory_order_relaxed) >= to - from) continue;
        int chunk = from + counters[part].claimed.fetch_add(1, std::memory_order_relaxed);
        if (chunk < to) return chunk;
    }
    if (done) counters->done.fetch_add(done, std::memory_order_release);
    for (int i = 0; counters->done.load(std::memory_order_acquire) < chunks; i++) i < SPINS ? pause() : (void)sched_yield();
    return -1;
}

void too_many_phases() {
    fputs("draftwood: a forward has more phases than it told\n", stderr);
    abort();
}

JobUse new_job(int phases, int threads) {
    Pool& all = pool();
    Job* free = nullptr;
    {
        std::lock_guard<std::mutex> lock(all.mutex);
        for (auto& job : all.jobs)
            if (is_free(*job)) free = job.get();
        if (!free) all.jobs.push_back(std::make_unique<Job>()), free = all.jobs.back().get();
        free->users = 1;
    }
    JobUse job(free);
    size_t counters = (size_t)phases * threads;
    if (job->counters.size() < counters) job->counters = std::vector<Counter>(counters);
    for (Counter& counter : job->counters) counter.claimed = counter.done = 0;
    job->threads = threads;
    return job;
}

void forget_jobs() {
    std::vector<std::shared_ptr<void>> kept;  // freed without the lock
    Pool& all = pool();
    std::lock_guard<std::mutex> lock(all.mutex);
    for (auto& job : all.jobs)
        if (is_free(*job)) kept.push_back(std::move(job->kept)), job->works.clear();
}

void run_job(Job& job) {
    Pool& all = pool();
    std::lock_guard<std::mutex> alone(all.running);
    if (job.threads > 1) {
        std::lock_guard<std::mutex> lock(all.mutex);
        for (; all.threads < job.threads; all.threads++)
            std::thread(&Pool::work, &all, all.threads, all.number.load()).detach();
        all.job = &job;
        all.number.fetch_add(1, std::memory_order_release);
        if (all.asleep) all.changed.notify_all();
    }
    compute(job, 0);
    std::lock_guard<std::mutex> lock(all.mutex);
    all.job = nullptr;
}
}  // namespace draftwood
