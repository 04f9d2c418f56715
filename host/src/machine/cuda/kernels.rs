//! The kernels of a device: machine code is loaded when its communicators are created, PTX when a call first needs it (docs/adr/0017-kernels-by-need.md).

use super::driver::{Device, Event, Function, Module, RelaxedCapture};
use super::tiles::Tiles;
use crate::gpu::KernelError;
use crate::gpu::bundle::{Bundle, BundleError, ImageForm, find_bundle};
use oxccl_shared::algo::kernels::Kernel;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{
    Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
    TryLockError, Weak,
};
use std::time::{Duration, Instant};

/// Kernels of one device, for all communicators on it; unloaded with the last of them.
#[derive(Debug)]
pub struct DeviceKernels {
    device: Device,
    bundle: Arc<Bundle>,
    loaded: Mutex<Loaded>,
    /// Shared by threads that launch, and had by one that loads. There once communicators load kernels after they have been created.
    gate: OnceLock<RwLock<()>>,
    /// For each communicator on the device, what is done when its operations are.
    operations: Mutex<Vec<Weak<Event>>>,
}

#[derive(Debug, Default)]
struct Loaded {
    modules: HashMap<String, Module>,
    functions: HashMap<Kernel, Function>,
}

/// Which images of a kernel may be loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forms {
    /// Machine code.
    MachineCode,
    /// PTX too, which the driver compiles.
    All,
}

/// How long kernels of the device are waited for before another is loaded beside them: longer than peers take to compile what those
/// wait for.
const IDLE_MAX: Duration = Duration::from_secs(10);
const LOOKS_EVERY: Duration = Duration::from_micros(200);

/// By ordinal. Locked when communicators are created.
static OF_DEVICES: LazyLock<Mutex<HashMap<u32, Weak<DeviceKernels>>>> = LazyLock::new(Mutex::default);

impl DeviceKernels {
    /// The kernels of `device`, from `given`, from the bundle at `path`, or from one in a default place. The first communicator on a device
    /// decides for those that live at the same time.
    ///
    /// # Errors
    /// Those of [`find_bundle`].
    pub fn open(
        device: &Device,
        given: Option<&Arc<Bundle>>,
        path: Option<&Path>,
    ) -> Result<Arc<DeviceKernels>, BundleError> {
        let mut of_devices = OF_DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernels) = of_devices.get(&device.ordinal()).and_then(Weak::upgrade) {
            return Ok(kernels);
        }
        let bundle = given.map_or_else(|| find_bundle(path), |given| Ok(given.clone()))?;
        bundle.check_abi()?;
        let (path, digest) = (bundle.path().display(), bundle.digest());
        tracing::info!("Kernels {digest} of {path}, commit {}", bundle.commit());
        let kernels = Arc::new(DeviceKernels {
            device: device.clone(),
            bundle,
            loaded: Mutex::default(),
            gate: OnceLock::new(),
            operations: Mutex::default(),
        });
        of_devices.insert(device.ordinal(), Arc::downgrade(&kernels));
        Ok(kernels)
    }

    /// A kernel that can run in blocks of so many threads, loaded now if it is not there. Works during stream capture.
    ///
    /// Loading may make the driver wait for the device's running kernels, with locks that other threads need to launch what those wait
    /// for. So where kernels are loaded late, this waits first, without any lock, until no operation of this process runs on the device,
    /// and keeps others from being launched meanwhile. It waits no longer than [`IDLE_MAX`] or until `is_stopped`: then it loads all the same.
    ///
    /// # Errors
    /// [`KernelError`]; if several images fit, the first one's refusal.
    pub fn get(
        &self,
        id: Kernel,
        threads: u32,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Function, KernelError> {
        let started = Instant::now();
        loop {
            // Another rank of this process may load it meanwhile, and launch an operation that waits for this one.
            if let Some(function) = self.loaded().functions.get(&id) {
                return Ok(function.clone());
            }
            let gives_up = started.elapsed() > IDLE_MAX || is_stopped();
            let _bound = self.device.bind()?;
            let gate = self.gate.get().map(|gate| self.alone(gate, gives_up));
            if gate.as_ref().is_none_or(Option::is_some) {
                return self.load(&mut self.loaded(), id, threads, Forms::All);
            }
            std::thread::sleep(LOOKS_EVERY);
        }
    }

    /// A kernel, if it is loaded.
    pub fn if_loaded(&self, id: Kernel) -> Option<Function> {
        self.loaded().functions.get(&id).cloned()
    }

    /// Whether none has been loaded yet: a process has no communicator on the GPU so far.
    pub fn has_none(&self) -> bool {
        self.loaded().functions.is_empty()
    }

    /// Loads those of these kernels that the bundle has in one of these forms. A kernel that cannot be loaded is an error of the call that
    /// needs it.
    ///
    /// Returns whether all are loaded. If not, calls load the rest.
    pub fn load_all(&self, kernels: &[(Kernel, u32)], forms: Forms) -> bool {
        let has_all = self.load_each(kernels, forms);
        if !has_all {
            self.gate.get_or_init(RwLock::default);
        }
        has_all
    }

    /// Loads those of which there is machine code as well, for a communicator that may follow: survivors of a death are in a hurry. Others
    /// are loaded when they are needed; to compile them ahead would take minutes.
    pub fn load_spare(&self, kernels: &[(Kernel, u32)]) {
        self.load_each(kernels, Forms::MachineCode);
    }

    /// Returns whether all are loaded.
    fn load_each(&self, kernels: &[(Kernel, u32)], forms: Forms) -> bool {
        // Querying a function's limits needs the GPU's context; a missing context is an error of the next use.
        let _bound = self.device.bind().ok();
        let mut has_all = true;
        for (id, threads) in kernels {
            if let Err(error) = self.load(&mut self.loaded(), *id, *threads, forms) {
                has_all = false;
                if matches!(error, KernelError::NotCompiled { .. }) {
                    continue;
                }
                tracing::debug!(%error, kernel = %id, "not loaded");
                // A driver that is older than the assembler refuses all machine code.
                if matches!(error, KernelError::Cuda(_)) && forms == Forms::MachineCode {
                    break;
                }
            }
        }
        has_all
    }

    /// Another communicator on the device, whose operations are done when `done` is.
    pub fn watch(&self, done: &Arc<Event>) {
        let mut operations = self.operations.lock().unwrap_or_else(PoisonError::into_inner);
        operations.retain(|event| event.strong_count() > 0);
        operations.push(Arc::downgrade(done));
    }

    /// Keeps others from loading kernels while this thread launches some, where they are loaded late.
    pub fn launching(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.gate.get().map(|gate| gate.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Keeps others from launching on the device, if no operation runs there or this thread waits no longer.
    fn alone<'a>(&self, gate: &'a RwLock<()>, gives_up: bool) -> Option<RwLockWriteGuard<'a, ()>> {
        let guard = match gate.try_write() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Threads that launch do not keep it long, and those that load only while the driver compiles.
            Err(TryLockError::WouldBlock) if gives_up => gate.write().unwrap_or_else(PoisonError::into_inner),
            Err(TryLockError::WouldBlock) => return None,
        };
        (gives_up || self.is_idle()).then_some(guard)
    }

    /// Whether all operations on the device are done that are not part of graphs. An event that cannot be queried is of a broken context,
    /// where no kernel runs.
    fn is_idle(&self) -> bool {
        let operations = self.operations.lock().unwrap_or_else(PoisonError::into_inner);
        operations.iter().filter_map(Weak::upgrade).all(|event| event.is_done().unwrap_or(true))
    }

    fn loaded(&self) -> MutexGuard<'_, Loaded> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn load(
        &self,
        loaded: &mut Loaded,
        id: Kernel,
        threads: u32,
        forms: Forms,
    ) -> Result<Function, KernelError> {
        if let Some(function) = loaded.functions.get(&id) {
            return Ok(function.clone());
        }
        let _relaxed = RelaxedCapture::enter(self.device.driver());
        let entry = id.to_string();
        let function = load_module(&self.device, &self.bundle, &mut loaded.modules, &entry, forms)?;
        // The driver loads a function at its first use, and may wait for running kernels then. Querying its limits
        // makes it load now.
        let threads_max = function.threads_max()?;
        if threads > threads_max {
            let device = self.device.id();
            return Err(KernelError::BlockSize { device, name: entry, threads, threads_max });
        }
        if id.has_tiles() && Tiles::shared_max(&self.device) > 0 {
            function.set_dynamic_shared_max(Tiles::shared_max(&self.device))?;
        }
        loaded.functions.insert(id, function.clone());
        Ok(function)
    }
}

/// A kernel of a bundle in one of these forms, from its module among `modules`, where it is added if it is not there.
///
/// # Errors
/// [`KernelError`]; if several images fit, the first one's refusal.
pub(super) fn load_module(
    device: &Device,
    bundle: &Bundle,
    modules: &mut HashMap<String, Module>,
    entry: &str,
    forms: Forms,
) -> Result<Function, KernelError> {
    let mut refusal = None;
    for image in bundle.images(entry, device.sm())? {
        if let Some(module) = modules.get(image.module()) {
            return Ok(module.function(entry)?);
        }
        if image.form() == ImageForm::Ptx && forms == Forms::MachineCode {
            continue;
        }
        let started = Instant::now();
        match Module::load_for(device, &bundle.read(&image)?, image.sm()) {
            Ok(module) => {
                tracing::debug!(module = image.module(), form = ?image.form(), took = ?started.elapsed(), "loaded");
                let function = module.function(entry)?;
                modules.insert(image.module().to_owned(), module);
                return Ok(function);
            }
            Err(error) => {
                tracing::warn!(%error, module = image.module(), sm = image.sm(), "an image was refused");
                refusal = refusal.or(Some(error));
            }
        }
    }
    Err(refusal.map_or(KernelError::NotCompiled { name: entry.to_owned() }, KernelError::from))
}
