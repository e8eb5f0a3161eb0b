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

// ErrNotShared says that mounts below the pods' directories don't reach the node, so that pods would see empty directories.
var ErrNotShared = errors.New("mounts of this process don't reach the node")

// table is what was read from this process's mount table.
type table struct {
	// tmpfs are the entries that mount the root of a tmpfs.
	tmpfs []*mountinfo.Info
	// shared says, by mount ID, whether a mount is in a peer group.
	shared map[uint64]bool
	// unreadable counts lines that cannot be parsed.
	unreadable int
}

func readTable() (table, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return table{}, fmt.Errorf("read the mount table: %w", err)
	}
	return parseTable(string(text)), nil
}

// parseTable parses each line separately. Other programs choose most of their contents, and a strange line must not hide the volumes in the
// lines after it.
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
		// The parser searches the separator from the end of the line, where a file system may write any options. A separator that it missed
		// is among the optional fields.
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

// Mounted is a mounted volume.
type Mounted struct {
	VolumeID, Target string
}

// List returns the mounts of this driver below the kubelet's directory, sorted by target, each once even if it is stacked. It reads the
// whole mount table, so it is used once at start. Its result is a hint, which Open proves. Lines that cannot be parsed are skipped, and
// their number is logged.
func (m *Mounter) List(ctx context.Context) ([]Mounted, error) {
	dir, err := openKubeletDir(m.kubeletDir)
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	defer unix.Close(dir)
	// The table has the kernel's paths, without symbolic links.
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

// ours selects this driver's mounts below realDir, which is the kubelet's directory as the mount table spells it.
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

// CheckPropagation returns an error that matches ErrNotShared, and says what to set, if the mount of <kubelet-dir>/pods is in no peer
// group, so that mounts below it stay in this process. Any other error says that the mount table could not be read. It cannot detect a peer
// group that a container runtime has made only for the container. It uses the table that List has read, or reads it.
func (m *Mounter) CheckPropagation() error {
	path := filepath.Join(m.kubeletDir, "pods")
	fd, err := openKubeletDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		path = m.kubeletDir // the kubelet creates the pods directory at its first start
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
