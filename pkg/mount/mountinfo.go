package mount

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// ownMountTable is the table of this process's mounts.
const ownMountTable = "/proc/self/mountinfo"

// mountTable is what is read of this process's mount table.
type mountTable struct {
	// tmpfs are the entries that are all of a tmpfs.
	tmpfs []*mountinfo.Info
	// hasPeers says of each mount, by its id, whether it is in a group of peers.
	hasPeers map[int]bool
	// unreadable counts lines that can't be parsed.
	unreadable int
}

// maxLine is longer than any line of ours: two paths and a source, four bytes for each of
// theirs, and options, which have a page.
const maxLine = 48 << 10

// readMountTable reads the whole table.
func readMountTable() (mountTable, error) {
	file, err := os.Open(ownMountTable)
	if err != nil {
		return mountTable{}, fmt.Errorf("read the mount table: %w", err)
	}
	defer file.Close()
	return parseMountTable(file)
}

// parseMountTable takes each line by itself. Other programs decide what is in most of them,
// and one of those must not hide the volumes in the lines after it.
func parseMountTable(table io.Reader) (mountTable, error) {
	all := mountTable{hasPeers: map[int]bool{}}
	lines := bufio.NewReaderSize(table, maxLine)
	for tooLong := false; ; {
		line, more, err := lines.ReadLine()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return mountTable{}, fmt.Errorf("read the mount table: %w", err)
		}
		if more || tooLong {
			if !more {
				all.unreadable++
			}
			tooLong = more
			continue
		}
		infos, err := mountinfo.GetMountsFromReader(bytes.NewReader(line), nil)
		if err != nil {
			all.unreadable++
			continue
		}
		for _, info := range infos {
			all.add(info)
		}
	}
}

// add takes an entry. The parser looks for the separator from the end, where a file system writes
// options as it likes; a separator that it passed over is among the optional fields.
func (t *mountTable) add(info *mountinfo.Info) {
	optional := strings.Fields(info.Optional)
	separator := slices.Index(optional, "-")
	if separator >= 0 {
		optional = optional[:separator]
	}
	t.hasPeers[info.ID] = slices.ContainsFunc(optional, func(field string) bool { return strings.HasPrefix(field, "shared:") })
	if info.FSType == "tmpfs" && info.Root == "/" && separator < 0 {
		t.tmpfs = append(t.tmpfs, info)
	}
}

// Mounted is a volume that is mounted.
type Mounted struct {
	VolumeID, Target string
}

// List returns the mounts of this driver below the kubelet's directory, each once
// however often it is stacked, sorted by target. It reads the whole mount table, so
// it is for a start; what it returns is a hint, to be proven by Check. Lines that can't be
// parsed are skipped and counted in the log.
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
	table, err := readMountTable()
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	m.hasPeers.Store(&table.hasPeers)
	if table.unreadable > 0 {
		klog.FromContext(ctx).Info("Skipped lines of the mount table that can't be parsed", "lines", table.unreadable)
	}
	return m.ours(table.tmpfs, realDir), nil
}

// ours picks this driver's mounts below realDir, which is how the mount table
// spells the kubelet's directory.
func (m *Mounter) ours(infos []*mountinfo.Info, realDir string) []Mounted {
	var all []Mounted
	for _, info := range infos {
		id, ok := strings.CutPrefix(info.Source, m.source(""))
		if !ok || ValidateVolumeID(id) != nil {
			continue
		}
		rel, err := relative(realDir, info.Mountpoint)
		if err != nil {
			continue
		}
		all = append(all, Mounted{VolumeID: id, Target: filepath.Join(m.kubeletDir, rel)})
	}
	slices.SortFunc(all, func(a, b Mounted) int {
		return strings.Compare(a.Target+"\x00"+a.VolumeID, b.Target+"\x00"+b.VolumeID)
	})
	return slices.Compact(all)
}
