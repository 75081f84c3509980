# Process 1 of a host: bash host.sh TOLD NAME ETC (rw|ro):PATH...
# Makes a host out of its fresh namespaces, writes its pid, as the machine numbers it, to TOLD, and reaps orphans.
set -eu
read -r pid _ </proc/self/stat # from the machine's /proc, which is still mounted
told=$1 name=$2 etc=$3
shift 3
hostname "$name"
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/lock /run/aside /run/etc
mount --rbind "$etc" /run/etc
mount --bind /run/etc/hosts /etc/hosts
if [ -e /run/etc/slurm ]; then
  mkdir -p /run/slurm /run/munge
  mount --bind /run/etc/slurm /etc/slurm
fi
mount --rbind /tmp /run/aside # kept until the paths below are taken from it
mount -t tmpfs -o mode=1777 tmpfs /tmp
mkdir -m 700 /tmp/home
for seen; do
  mode=${seen%%:*} path=${seen#*:} from=${seen#*:}
  case $path in /tmp/*) from=/run/aside/${path#/tmp/} && mkdir -p "$path" ;; esac
  mount --bind "$from" "$path"
  [ "$mode" = rw ] || mount -o remount,bind,ro "$path"
done
told=/run/aside/${told#/tmp/}
echo "$pid" >"$told.new"
mv "$told.new" "$told"
cd / && umount -l /run/aside
trap : INT TERM HUP
while :; do sleep infinity & wait $! || :; done # bash, which reaps what others leave, and not sleep
