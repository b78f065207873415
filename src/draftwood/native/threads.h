// Jobs, and the threads that do them together.
#pragma once
#include <atomic>
#include <memory>
#include <vector>

#include "model.h"

namespace draftwood {
// Memory that is aligned to cache lines; it grows, and what it held is lost then.
class Buffer {
  public:
    Buffer() = default;
    Buffer(const Buffer&) = delete;
    ~Buffer() { release(); }
    void* reserve(size_t bytes);         // throws std::bad_alloc
    static size_t whole(size_t bytes);  // that so many take

  private:
    void release();
    void* start_ = nullptr;
    size_t bytes_ = 0;
};

struct alignas(64) Counter {
    std::atomic<int> claimed{0}, done{0};
};

// What threads do together, with all memory that they need. A thread that was not scheduled in time may look at a job when
// it is over; it finds no chunk left then.
struct Job {
    std::atomic<int> users{0};      // threads that may look at it
    std::shared_ptr<void> kept;     // what they point to
    std::vector<Work> works;        // one after the other
    std::vector<Counter> counters;  // [phase][thread]; the first of a phase counts what is done
    Shared shared;
    std::vector<Scratch> scratch;
    int threads;
    Buffer shared_memory;
    std::vector<std::unique_ptr<Buffer>> own_memory;
};

struct Leave {
    void operator()(Job* job) const { job->users.fetch_sub(1, std::memory_order_release); }
};
// A job as long as a thread uses it; its memory serves a later one.
typedef std::unique_ptr<Job, Leave> JobUse;

// A job that no other thread uses, with ``phases`` that were not begun.
JobUse new_job(int phases, int threads);

// Let go of what finished jobs point to.
void forget_jobs();

// A thread's part of a job (run.cpp).
void compute(Job& job, int thread);
// Compute on the job's threads, of which this is number 0. It returns when all phases are done.
void run_job(Job& job);
}  // namespace draftwood
