package mount

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// ErrNotShared says that what is mounted below the pods' directories doesn't reach the node, so that pods would get empty
// directories.
var ErrNotShared = errors.New("mounts of this process don't reach the node")

// table is what is read of this process's mount table.
type table struct {
	// tmpfs are the entries that are all of a tmpfs.
	tmpfs []*mountinfo.Info
	// shared says of each mount, by its id, whether it is in a group of peers.
	shared map[uint64]bool
	// unreadable counts lines that can't be parsed.
	unreadable int
}

func readTable() (table, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return table{}, fmt.Errorf("read the mount table: %w", err)
	}
	return parseTable(string(text)), nil
}

// parseTable takes each line by itself. Other programs decide what is in most of them, and one of those must not hide the
// volumes in the lines after it.
func parseTable(text string) table {
	all := table{shared: map[uint64]bool{}}
	for line := range strings.Lines(text) {
		infos, err := mountinfo.GetMountsFromReader(strings.NewReader(line), nil)
		if err != nil {
			all.unreadable++
		}
		if len(infos) != 1 {
			continue
		}
		info := infos[0]
		// The parser looks for the separator from the end, where a file system writes options as it likes; one that
		// it passed over is among the optional fields.
		optional := strings.Fields(info.Optional)
		separator := slices.Index(optional, "-")
		if separator >= 0 {
			optional = optional[:separator]
		}
		all.shared[uint64(info.ID)] = slices.ContainsFunc(optional, func(field string) bool { return strings.HasPrefix(field, "shared:") })
		if info.FSType == "tmpfs" && info.Root == "/" && separator < 0 {
			all.tmpfs = append(all.tmpfs, info)
		}
	}
	return all
}

// Mounted is a volume that is mounted.
type Mounted struct {
	VolumeID, Target string
}

// List returns the mounts of this driver below the kubelet's directory, each once however often it is stacked, sorted by
// target. It reads the whole mount table, so it is for a start; what it returns is a hint, to be proven by Open. Lines that
// can't be parsed are skipped and counted in the log.
func (m *Mounter) List(ctx context.Context) ([]Mounted, error) {
	dir, err := openKubeletDir(m.kubeletDir)
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	defer unix.Close(dir)
	// The table has paths without symbolic links, as the kernel knows this one.
	realDir, err := os.Readlink(procPath(dir))
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	all, err := readTable()
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	m.shared.Store(&all.shared)
	if all.unreadable > 0 {
		klog.FromContext(ctx).Info("Skipped lines of the mount table that can't be parsed", "lines", all.unreadable)
	}
	return m.ours(all.tmpfs, realDir), nil
}

// ours picks this driver's mounts below realDir, which is how the mount table spells the kubelet's directory.
func (m *Mounter) ours(infos []*mountinfo.Info, realDir string) []Mounted {
	var all []Mounted
	for _, info := range infos {
		id, ok := strings.CutPrefix(info.Source, m.source(""))
		rel, err := relative(realDir, info.Mountpoint)
		if ok && err == nil && ValidateVolumeID(id) == nil {
			all = append(all, Mounted{VolumeID: id, Target: filepath.Join(m.kubeletDir, rel)})
		}
	}
	slices.SortFunc(all, func(a, b Mounted) int {
		return strings.Compare(a.Target+"\x00"+a.VolumeID, b.Target+"\x00"+b.VolumeID)
	})
	return slices.Compact(all)
}

// CheckPropagation returns an error that matches ErrNotShared, and says what to set, if the mount of <kubelet-dir>/pods
// belongs to no group of peers, so that what is mounted there stays with this process. Any other error says that the mount
// table could not be read. A group that a container runtime has made for the container alone is not seen. It looks into the table that
// List has read, and reads it if List has not.
func (m *Mounter) CheckPropagation() error {
	path := filepath.Join(m.kubeletDir, "pods")
	fd, err := openKubeletDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		path = m.kubeletDir // the kubelet makes the other one at its first start
		fd, err = openKubeletDir(path)
	}
	if err != nil {
		return fmt.Errorf("check the propagation of mounts: %w", err)
	}
	defer unix.Close(fd)
	id, err := mountID(fd)
	shared := m.shared.Load()
	if err == nil && shared == nil {
		var all table
		all, err = readTable()
		shared = &all.shared
	}
	if err == nil {
		err = checkShared(*shared, id)
	}
	if err != nil {
		return fmt.Errorf("check the propagation of mounts at %s: %w", path, err)
	}
	return nil
}

func checkShared(mounts map[uint64]bool, id uint64) error {
	shared, found := mounts[id]
	if !found {
		return errors.New("read the mount table: the mount is not in it")
	}
	if !shared {
		return fmt.Errorf("%w: set mountPropagation: Bidirectional where the plugin's container mounts this path from the node, "+
			"or make the mount shared (mount --make-rshared) where the plugin runs without a container", ErrNotShared)
	}
	return nil
}
