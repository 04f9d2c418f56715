//! What runs no rank: settings, schedules, topologies, plans, and what the kernels' PTX says.

mod prop_schedules;
mod topology_channels;
mod topology_detect;
mod topology_nccl;
mod topology_xml;
mod settings;
mod tuning;
mod ptx_golden;
mod ptx_kernels;
mod amdgcn_golden;
