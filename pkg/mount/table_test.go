package mount

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
)

// Other programs choose the names and options of their mounts. Whatever these are, the volumes in the lines before and after are found, and
// no such line counts as a volume.
func TestLinesThatCannotBeParsed(t *testing.T) {
	const before = "41 40 0:41 / /k/pods/a/mount ro - tmpfs d:vol-a rw\n"
	const after = "42 40 0:42 / /k/pods/b/mount ro - tmpfs d:vol-b rw\n"
	for name, tc := range map[string]struct {
		line       string
		unreadable int
	}{
		"too few fields":     {"50 40 0:50 / /k/pods/x", 1},
		"empty":              {"", 1},
		"no separator":       {"50 40 0:50 / /k/pods/x/mount ro tmpfs d:vol-x rw tmpfs d:vol-x rw", 1},
		"bad escape":         {`50 40 0:50 / /k/pods/x\9/mount ro - tmpfs d:vol-x rw`, 1},
		"escape cut short":   {`50 40 0:50 / /k/pods/x ro - tmpfs d:vol-x\1 rw`, 1},
		"bad device":         {"50 40 0 / /k/pods/x/mount ro - tmpfs d:vol-x rw", 1},
		"NUL bytes":          {"\x00\x00\x00", 1},
		"very long":          {"50 40 0:50 / /k/pods/x/mount ro - overlay overlay lowerdir=" + strings.Repeat("/layer:", 1<<17), 1},
		"long and of a part": {strings.Repeat("x ", 48<<10) + "- tmpfs d:vol-x rw", 1},
		"escaped line feed":  {`50 40 0:50 / /k/pods/x\01243\04040\0400:43\040/\040/k/pods/x ro - ext4 /dev/vda rw`, 0},
		"spaces in options":  {"50 40 0:50 / /k/pods/x/mount ro - fuse x rw,a - tmpfs d:vol-x rw", 0},
	} {
		t.Run(name, func(t *testing.T) {
			table := parseTable(before + tc.line + "\n" + after)
			if table.unreadable != tc.unreadable {
				t.Errorf("%d lines are unreadable, want %d", table.unreadable, tc.unreadable)
			}
			m := &Mounter{driver: "d", kubeletDir: "/k"}
			want := []Mounted{{"vol-a", "/k/pods/a/mount"}, {"vol-b", "/k/pods/b/mount"}}
			if got := m.ours(table.tmpfs, "/k"); !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}

// TestListLogsNothing: the table of this machine has no line that can't be parsed, so none is logged.
func TestListLogsNothing(t *testing.T) {
	var log bytes.Buffer
	ctx := klog.NewContext(t.Context(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log))))
	m := &Mounter{driver: "d", kubeletDir: t.TempDir()}
	if all, err := m.List(ctx); err != nil || len(all) > 0 || log.Len() > 0 {
		t.Errorf("%v, %v, and it logged %q", all, err, &log)
	}
}

// A mount is shared if an optional field says so. Options of the file system that look like such a field say nothing.
func TestShared(t *testing.T) {
	for line, want := range map[string]bool{
		"50 40 0:50 / /k/pods/x ro shared:7 - tmpfs d:vol-x rw":                        true,
		"50 40 0:50 / /k/pods/x ro master:1 shared:7 - tmpfs d:vol-x rw":               true,
		"50 40 0:50 / /k/pods/x ro master:1 - tmpfs d:vol-x rw":                        false,
		"50 40 0:50 / /k/pods/x ro - tmpfs d:vol-x rw":                                 false,
		"50 40 0:50 / /k/pods/x ro - fuse x rw,a shared:7 - tmpfs d:vol-x rw":          false,
		"50 40 0:50 / /k/pods/x ro master:1 - fuse x rw,a shared:7 - tmpfs d:vol-x rw": false,
	} {
		if got := parseTable(line + "\n").shared[50]; got != want {
			t.Errorf("%s: shared is %t", line, got)
		}
	}
}
