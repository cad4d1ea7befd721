// A device for torch that is made of threads and host memory, and does its work late.
//
// As on a GPU, calls return when their work is queued; a stream's work is done in order, that of two streams in any
// order that events leave open. Each piece of work waits for a random time before it begins. Memory belongs to the
// stream that was current when it was asked for, and is used again for that one as soon as it is let go of. It comes
// full of rubbish, which is written in turn on its stream: who still reads what was there before, on another stream and
// without an event between them, sees it.
//
// It is torch's "PrivateUse1" backend: the CPU's kernels run on the device's memory. What they return in arguments is
// done late; what they return otherwise is waited for.

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_cpu_dispatch.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/view_cpu_dispatch.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <thread>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;
using c10::StreamId;

constexpr auto kLate = c10::DeviceType::PrivateUse1;
constexpr DeviceIndex kNumDevices = 2;
constexpr int kRubbish = 0xA5;

// Points in a stream.

class Point {
 public:
  void reach() {
    {
      std::lock_guard lock(mutex_);
      reached_ = true;
    }
    changed_.notify_all();
  }

  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return reached_; });
  }

  bool is_reached() {
    std::lock_guard lock(mutex_);
    return reached_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reached_ = false;
};

struct Event {
  std::shared_ptr<Point> point;  // none before it is recorded
};

// Streams. None ever ends: a process may end while they wait.

class Queue {
 public:
  explicit Queue(unsigned seed) : random_(seed) {
    std::thread([this] { work(); }).detach();
  }

  void add(std::function<void()> work) {
    {
      std::lock_guard lock(mutex_);
      waiting_.push_back(std::move(work));
    }
    changed_.notify_one();
  }

  std::shared_ptr<Point> mark() {
    auto point = std::make_shared<Point>();
    add([point] { point->reach(); });
    return point;
  }

 private:
  void work() {
    std::uniform_int_distribution<int> microseconds(0, 2000);
    while (true) {
      std::function<void()> next;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return !waiting_.empty(); });
        next = std::move(waiting_.front());
        waiting_.pop_front();
      }
      std::this_thread::sleep_for(std::chrono::microseconds(microseconds(random_)));
      try {
        next();
      } catch (const std::exception& error) {
        std::fprintf(stderr, "work on the late device failed: %s\n", error.what());
        std::abort();
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  std::mt19937 random_;
};

std::mutex queues_mutex;
std::vector<Queue*>& queues(DeviceIndex device) {  // [0] is the default stream
  static auto* all = new std::vector<Queue*>[kNumDevices];
  if (all[device].empty()) all[device].push_back(new Queue(device));
  return all[device];
}

Queue& queue_of(const Stream& stream) {
  std::lock_guard lock(queues_mutex);
  return *queues(stream.device_index()).at(stream.id());
}

StreamId add_stream(DeviceIndex device) {
  std::lock_guard lock(queues_mutex);
  auto& all = queues(device);
  all.push_back(new Queue(device + 10 * all.size()));
  return static_cast<StreamId>(all.size() - 1);
}

thread_local DeviceIndex current_device = 0;
thread_local StreamId current_streams[kNumDevices] = {};

Stream stream_of(DeviceIndex device) {
  return Stream(Stream::UNSAFE, Device(kLate, device), current_streams[device]);
}

void synchronize(DeviceIndex device) {
  std::vector<std::shared_ptr<Point>> points;
  {
    std::lock_guard lock(queues_mutex);
    for (auto* queue : queues(device)) points.push_back(queue->mark());
  }
  for (auto& point : points) point->wait();
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  Guard() = default;
  explicit Guard(c10::DeviceType) {}
  c10::DeviceType type() const override { return kLate; }
  Device exchangeDevice(Device device) const override {
    Device old = getDevice();
    setDevice(device);
    return old;
  }
  Device getDevice() const override { return Device(kLate, current_device); }
  void setDevice(Device device) const override {
    TORCH_CHECK(device.index() < kNumDevices, "there are ", kNumDevices, " late devices, got number ", device.index());
    if (device.has_index()) current_device = device.index();
  }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.has_index()) current_device = device.index();
  }
  Stream getStream(Device device) const noexcept override {
    return stream_of(device.has_index() ? device.index() : current_device);
  }
  Stream getDefaultStream(Device device) const override {
    return Stream(Stream::UNSAFE, device.has_index() ? device : getDevice(), 0);
  }
  Stream getNewStream(Device device, int) const override {
    if (!device.has_index()) device = getDevice();
    return Stream(Stream::UNSAFE, device, add_stream(device.index()));
  }
  Stream getStreamFromGlobalPool(Device device, bool) const override { return getNewStream(device, 0); }
  Stream exchangeStream(Stream stream) const noexcept override {
    Stream old = stream_of(stream.device_index());
    current_streams[stream.device_index()] = stream.id();
    return old;
  }
  DeviceIndex deviceCount() const noexcept override { return kNumDevices; }
  void synchronizeStream(const Stream& stream) const override { queue_of(stream).mark()->wait(); }
  void synchronizeDevice(const DeviceIndex device) const override { synchronize(device); }

  void record(void** event, const Stream& stream, const DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event;
    static_cast<Event*>(*event)->point = queue_of(stream).mark();
  }
  void block(void* event, const Stream& stream) const override {
    if (auto point = point_of(event)) queue_of(stream).add([point] { point->wait(); });
  }
  bool queryEvent(void* event) const override {
    auto point = point_of(event);
    return point == nullptr || point->is_reached();
  }
  void synchronizeEvent(void* event) const override {
    if (auto point = point_of(event)) point->wait();
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }

 private:
  static std::shared_ptr<Point> point_of(void* event) {
    return event == nullptr ? nullptr : static_cast<Event*>(event)->point;
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// Memory.

struct Block {
  void* data;
  size_t num_bytes;
  Stream stream;
  std::vector<Stream> others = {};  // which `record_stream` named: free only when they have come to where it was let go
};

class Memory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t num_bytes) override {
    const Stream stream = stream_of(current_device);
    const size_t rounded = (num_bytes + 511) / 512 * 512;
    if (rounded == 0) return {nullptr, nullptr, &free_block, stream.device()};
    std::lock_guard lock(mutex_);
    allocated_[stream.device_index()] += rounded;
    reclaim();
    auto& freed = freed_[{stream.device_index(), stream.id(), rounded}];
    if (freed.empty()) freed.push_back(new Block{std::aligned_alloc(512, rounded), rounded, stream});
    Block* block = freed.back();
    freed.pop_back();
    queue_of(stream).add([block] { std::memset(block->data, kRubbish, block->num_bytes); });
    return {block->data, block, &free_block, stream.device()};
  }

  void copy_data(void*, const void*, size_t) const override { TORCH_CHECK(false, "not on the late device"); }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }

  void record_stream(const c10::DataPtr& data, const Stream& stream) {
    if (data.get() == nullptr || data.get_deleter() != &free_block) return;  // as CUDA's does: a part of a block, say
    auto* block = static_cast<Block*>(data.get_context());
    std::lock_guard lock(mutex_);
    if (stream != block->stream) block->others.push_back(stream);
  }

  size_t allocated_bytes(DeviceIndex device) {
    std::lock_guard lock(mutex_);
    return allocated_[device];
  }

 private:
  static void free_block(void* context);

  void reclaim() {
    std::erase_if(waiting_, [this](auto& each) {
      for (auto& point : each.second) {
        if (!point->is_reached()) return false;
      }
      free_for_its_stream(each.first);
      return true;
    });
  }

  void free_for_its_stream(Block* block) {
    freed_[{block->stream.device_index(), block->stream.id(), block->num_bytes}].push_back(block);
  }

  std::mutex mutex_;
  std::map<std::tuple<DeviceIndex, StreamId, size_t>, std::vector<Block*>> freed_;
  std::vector<std::pair<Block*, std::vector<std::shared_ptr<Point>>>> waiting_;
  size_t allocated_[kNumDevices] = {};
};

Memory* memory() {
  static auto* only = new Memory;
  return only;
}

void Memory::free_block(void* context) {
  if (context == nullptr) return;
  auto* block = static_cast<Block*>(context);
  std::lock_guard lock(memory()->mutex_);
  memory()->allocated_[block->stream.device_index()] -= block->num_bytes;
  std::vector<std::shared_ptr<Point>> points;
  for (const Stream& stream : block->others) points.push_back(queue_of(stream).mark());
  block->others.clear();
  if (points.empty()) {
    memory()->free_for_its_stream(block);
  } else {
    memory()->waiting_.emplace_back(block, std::move(points));
  }
}

// Pinned host memory: copies from it read it when their turn comes. It is overwritten when it is freed, too.

std::mutex pinned_mutex;
std::map<const char*, size_t>& pinned() {
  static auto* all = new std::map<const char*, size_t>;
  return *all;
}

void free_pinned(void* data) {
  std::lock_guard lock(pinned_mutex);
  if (data != nullptr) std::memset(data, kRubbish, pinned().at(static_cast<char*>(data)));
  pinned().erase(static_cast<char*>(data));  // the memory itself stays: late copies read rubbish, and do not crash
}

class PinnedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t num_bytes) override {
    if (num_bytes == 0) return {nullptr, nullptr, &free_pinned, Device(c10::kCPU)};
    auto* data = static_cast<char*>(std::aligned_alloc(64, (num_bytes + 63) / 64 * 64));
    std::lock_guard lock(pinned_mutex);
    pinned()[data] = num_bytes;
    return {data, data, &free_pinned, Device(c10::kCPU)};
  }
  void copy_data(void* target, const void* source, size_t num_bytes) const override {
    std::memcpy(target, source, num_bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
};

bool is_pinned(const void* data) {
  std::lock_guard lock(pinned_mutex);
  auto next = pinned().upper_bound(static_cast<const char*>(data));
  if (next == pinned().begin()) return false;
  auto [start, num_bytes] = *std::prev(next);
  return static_cast<const char*>(data) < start + num_bytes;
}

// Host memory of others can be registered as pinned, as with CUDA's driver, and is left as it is when that ends.

constexpr int kInvalidValue = 1, kAlreadyRegistered = 712, kNotRegistered = 713;

int host_register(const char* data, size_t num_bytes) {
  if (num_bytes == 0) return kInvalidValue;
  std::lock_guard lock(pinned_mutex);
  auto next = pinned().lower_bound(data + num_bytes);
  if (next != pinned().begin()) {
    auto [start, length] = *std::prev(next);
    if (start + length > data) return kAlreadyRegistered;
  }
  pinned()[data] = num_bytes;
  return 0;
}

int host_unregister(const char* data) {
  std::lock_guard lock(pinned_mutex);
  return pinned().erase(data) == 1 ? 0 : kNotRegistered;
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const { return true; }  // overrides from torch 2.7 on, as the next one does
  bool isAvailable() const { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return kNumDevices; }
  void setCurrentDevice(DeviceIndex device) const override { Guard().setDevice(Device(kLate, device)); }
  DeviceIndex getCurrentDevice() const override { return current_device; }
  DeviceIndex exchangeDevice(DeviceIndex device) const override {
    return Guard().exchangeDevice(Device(kLate, device)).index();
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override {
    return device < 0 ? current_device : exchangeDevice(device);
  }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override {
    static auto* only = new PinnedMemory;
    return only;
  }
};

// Kernels.

at::Tensor at_address(const at::Tensor& tensor) {  // for the CPU's kernels; does not keep the memory
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
}

at::Tensor empty(
    at::IntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device> device,
    std::optional<bool>,
    std::optional<at::MemoryFormat> memory_format) {
  const c10::OptionalDeviceGuard guard(device);
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(size, memory(), keys, c10::dtype_or_default(dtype), memory_format);
}

at::Tensor empty_strided(
    at::IntArrayRef size,
    at::IntArrayRef stride,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device> device,
    std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(size, stride, memory(), keys, c10::dtype_or_default(dtype));
}

const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> memory_format) {
  const size_t num_bytes = self.dtype().itemsize() * (self.storage_offset() + c10::multiply_integers(size));
  if (num_bytes > self.storage().nbytes()) {
    const c10::DeviceGuard guard(self.device());
    auto larger = memory()->allocate(num_bytes);
    queue_of(stream_of(self.get_device()))
        .add([target = larger.get(), source = self.storage().data(), kept = self.storage().nbytes()] {
          std::memcpy(target, source, kept);
        });
    self.storage().set_data_ptr_noswap(std::move(larger));
    self.storage().set_nbytes(num_bytes);
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  if (memory_format) self.unsafeGetTensorImpl()->empty_tensor_restride(*memory_format);
  return self;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& target, bool non_blocking) {
  const DeviceIndex device = (target.is_privateuseone() ? target : self).get_device();
  if (self.is_privateuseone() && self.get_device() != device) synchronize(self.get_device());
  // Pageable memory is read before the call returns; pinned memory when the turn of the copy comes.
  const bool is_pageable = self.is_cpu() && !self.is_pinned();
  auto& queue = queue_of(stream_of(device));
  queue.add([source = is_pageable ? self.clone() : at_address(self), target = at_address(target)] {
    target.copy_(source);
  });
  const bool meets_host = self.is_cpu() || target.is_cpu();
  if (meets_host && (!non_blocking || (target.is_cpu() && !target.is_pinned()))) queue.mark()->wait();
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& target) {
  if (target.sizes() != self.sizes()) target.resize_(self.sizes());
  return copy_from(self, target, false);
}

at::Scalar local_scalar(const at::Tensor& self) { return self.cpu().item(); }

// Any other operator: on the memory of its tensors, by the CPU's kernel.

bool can_be_late(const c10::FunctionSchema& schema, const torch::jit::Stack& arguments) {
  if (schema.returns().empty()) return false;
  for (const auto& returned : schema.returns()) {
    if (returned.alias_info() == nullptr || !returned.alias_info()->isWrite()) return false;
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto& argument = schema.arguments()[i];
    const bool is_written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    const auto& value = arguments[i];
    if (is_written && (!value.isTensor() || !value.toTensor().is_privateuseone() || value.toTensor().numel() == 0)) {
      return false;  // one of no size may be about to get one
    }
    if (argument.type()->str().find("Generator") != std::string::npos) return false;  // which belongs to the host
  }
  return true;
}

at::Tensor on_host(const at::Tensor& tensor) { return tensor.is_privateuseone() ? at_address(tensor) : tensor; }

c10::IValue on_host(const c10::IValue& value) {
  if (value.isTensor()) return value.toTensor().defined() ? c10::IValue(on_host(value.toTensor())) : value;
  if (value.isTensorList()) {
    c10::List<at::Tensor> tensors;
    for (const at::Tensor& each : value.toTensorVector()) tensors.push_back(on_host(each));
    return tensors;
  }
  if (value.isList() && value.toListRef().size() > 0 && value.toListRef()[0].isTensor()) {
    c10::List<std::optional<at::Tensor>> tensors;
    for (const auto& each : value.toListRef()) {
      tensors.push_back(each.isTensor() ? std::optional(on_host(each.toTensor())) : std::nullopt);
    }
    return tensors;
  }
  return value;
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const size_t num_arguments = schema.arguments().size();
  const auto arguments = torch::jit::last(*stack, num_arguments).vec();
  if (!can_be_late(schema, arguments)) {
    at::native::cpu_fallback(op, stack);
    return;
  }
  torch::jit::Stack late, results;
  DeviceIndex device = current_device;
  for (size_t i = 0; i < num_arguments; ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    late.push_back(on_host(arguments[i]));
    if (alias != nullptr && alias->isWrite()) {
      results.push_back(arguments[i]);
      device = arguments[i].toTensor().get_device();
    }
  }
  queue_of(stream_of(device)).add([op, late]() mutable {
    const at::AutoDispatchBelowADInplaceOrView guard;
    op.callBoxed(&late);
  });
  torch::jit::drop(*stack, num_arguments);
  for (size_t i = 0; i < schema.returns().size(); ++i) stack->push_back(results.at(i));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("resize_", resize);
  m.impl("as_strided", at::cpu::as_strided_symint);
  m.impl("view", at::cpu::view_symint);
  m.impl("_reshape_alias", at::cpu::_reshape_alias_symint);
  m.impl("set_.source_Tensor", static_cast<at::Tensor& (*)(at::Tensor&, const at::Tensor&)>(at::cpu::set_));
  m.impl("set_.source_Storage", static_cast<at::Tensor& (*)(at::Tensor&, at::Storage)>(at::cpu::set_));
  m.impl("set_.source_Storage_storage_offset", at::cpu::set__symint);
  m.impl("record_stream", [](at::Tensor& self, Stream stream) {
    memory()->record_stream(self.storage().data_ptr(), stream);
  });
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

TORCH_LIBRARY(late, m) {
  m.def("allocated_bytes(int device) -> int", [](int64_t device) {
    return static_cast<int64_t>(memory()->allocated_bytes(static_cast<DeviceIndex>(device)));
  });
  m.def("host_register(int address, int num_bytes) -> int", [](int64_t address, int64_t num_bytes) {
    return static_cast<int64_t>(host_register(reinterpret_cast<const char*>(address), num_bytes));
  });
  m.def("host_unregister(int address) -> int", [](int64_t address) {
    return static_cast<int64_t>(host_unregister(reinterpret_cast<const char*>(address)));
  });
  m.def("occupy(int device, float seconds) -> ()", [](int64_t device, double seconds) {
    queue_of(stream_of(static_cast<DeviceIndex>(device))).add([seconds] {
      std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    });
  });
}

const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  c10::SetAllocator(kLate, memory());
  return true;
}();

}  // namespace
