//! The kernels of a device, loaded when its communicators are created.

use super::driver::{Device, Function, Module, RelaxedCapture};
use super::tiles::Tiles;
use crate::gpu::KernelError;
use crate::gpu::bundle::{Bundle, BundleError, find_bundle};
use oxccl_shared::algo::kernels::Kernel;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

/// Kernels of one device, for all communicators on it; unloaded with the last of them.
#[derive(Debug)]
pub struct DeviceKernels {
    device: Device,
    bundle: Arc<Bundle>,
    loaded: Mutex<Loaded>,
}

#[derive(Debug, Default)]
struct Loaded {
    modules: HashMap<String, Module>,
    functions: HashMap<Kernel, Function>,
}

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
        let kernels = Arc::new(DeviceKernels { device: device.clone(), bundle, loaded: Mutex::default() });
        of_devices.insert(device.ordinal(), Arc::downgrade(&kernels));
        Ok(kernels)
    }

    /// A kernel that can run in blocks of so many threads. Loading takes milliseconds, once for each function and
    /// type, and works during stream capture.
    ///
    /// # Errors
    /// [`KernelError`]; if several images fit, the first one's refusal.
    pub fn get(&self, id: Kernel, threads: u32) -> Result<Function, KernelError> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = loaded.functions.get(&id) {
            return Ok(function.clone());
        }
        let _relaxed = RelaxedCapture::enter(self.device.driver());
        let entry = id.to_string();
        let function = self.load(&mut loaded, &entry)?;
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

    /// Loads all of these that the bundle has: a kernel that cannot be loaded is an error of the call that needs it.
    ///
    /// Once a communicator exists nothing should be loaded: loading makes the driver wait for running kernels, with
    /// locks that other threads need to launch the kernels that those wait for.
    ///
    /// Returns whether all are loaded.
    pub fn load_all(&self, kernels: &[(Kernel, u32)]) -> bool {
        // Querying a function's limits needs the GPU's context; a missing context is an error of the next use.
        let _bound = self.device.bind().ok();
        let mut has_all = true;
        for (id, threads) in kernels {
            if let Err(error) = self.get(*id, *threads) {
                tracing::debug!(%error, kernel = %id, "not loaded");
                has_all = false;
            }
        }
        has_all
    }

    fn load(&self, loaded: &mut Loaded, entry: &str) -> Result<Function, KernelError> {
        load_module(&self.device, &self.bundle, &mut loaded.modules, entry)
    }
}

/// A kernel of a bundle, from its module among `modules`, where it is added if it is not there.
///
/// # Errors
/// [`KernelError`]; if several images fit, the first one's refusal.
pub(super) fn load_module(
    device: &Device,
    bundle: &Bundle,
    modules: &mut HashMap<String, Module>,
    entry: &str,
) -> Result<Function, KernelError> {
    let mut refusal = None;
    for image in bundle.images(entry, device.sm())? {
        if let Some(module) = modules.get(image.module()) {
            return Ok(module.function(entry)?);
        }
        match Module::load(device, &bundle.read(&image)?) {
            Ok(module) => {
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
    Err(refusal.expect("a bundle gives at least one image or an error").into())
}
