#!/bin/busybox sh
# The guest's first process: modules, two RoCE devices on a veth pair, the job, its status on the serial line.
# Debian's busybox prefers its own applets to programs of the same name: iproute2's are called by their path.
/bin/busybox --install -s /bin
export PATH=/bin HOME=/root LD_LIBRARY_PATH=/lib
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts pts /dev/pts
mount -t tmpfs shm /dev/shm
stty -F /dev/ttyS0 raw -echo

finish() {
    printf '\nsoftroce-status:%s:\n' "$1"
    # Setting the line waits until what was written has left; the port ends QEMU at once.
    stty -F /dev/ttyS0 raw -echo
    printf '\0' | dd of=/dev/port bs=1 seek=244 2>/dev/null
    poweroff -f
}

for module in $(cat /etc/modules); do
    insmod "/modules/$module" || finish "insmod $module"
done
ulimit -l unlimited
/sbin/ip link set lo up
/sbin/ip link add va type veth peer name vb
/sbin/ip addr add 10.9.0.1/24 dev va noprefixroute
/sbin/ip addr add 10.9.0.2/24 dev vb noprefixroute
# Both addresses are this host's, so packets would go through lo, where rxe drops them. What is bound to va or vb goes to
# the wire, and only what comes in from there is looked up as local.
for side in va vb; do
    /sbin/ip link set $side mtu 4200 up # room for a path MTU of 4096
    echo 1 >/proc/sys/net/ipv4/conf/$side/accept_local
    /sbin/ip rule add pref 0 iif $side lookup local
done
/sbin/ip rule add pref 1 oif va lookup 101
/sbin/ip rule add pref 1 oif vb lookup 102
/sbin/ip route add local 10.9.0.1 dev va table 101
/sbin/ip route add 10.9.0.0/24 dev va table 101
/sbin/ip route add local 10.9.0.2 dev vb table 102
/sbin/ip route add 10.9.0.0/24 dev vb table 102
/sbin/ip rule add pref 10 lookup local
/sbin/ip rule del pref 0 from all lookup local
/sbin/ip neigh replace 10.9.0.2 lladdr "$(cat /sys/class/net/vb/address)" dev va
/sbin/ip neigh replace 10.9.0.1 lladdr "$(cat /sys/class/net/va/address)" dev vb

for pair in rxe0:va rxe1:vb; do
    device=${pair%:*}
    /sbin/rdma link add "$device" type rxe netdev "${pair#*:}" || finish "rdma link add $device"
    tries=0
    # The GID of the IPv4 address comes a moment after the device.
    until grep -qi ':ffff:' "/sys/class/infiniband/$device/ports/1/gids/1" 2>/dev/null; do
        tries=$((tries + 1))
        [ $tries -lt 100 ] || finish "no GID on $device"
        usleep 50000
    done
done
echo "softroce: rxe0 (10.9.0.1) and rxe1 (10.9.0.2) are up after $(cut -d' ' -f1 /proc/uptime) s"
cd /job || finish "no /job"
sh /job/run.sh
finish $?
