package mount

import (
	"slices"
	"strings"
	"testing"
)

// A mount table as the kernel writes it; an empty source leaves two spaces, and
// spaces in names are octal.
const exampleTable = `22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:30 / /mnt/empty\040source rw - tmpfs  rw
40 22 254:0 /kubelet /var/lib/kubelet rw shared:1 - ext4 /dev/vda rw
41 40 0:41 / /var/lib/kubelet/pods/b/mount ro,nosuid,nodev,noexec shared:2 - tmpfs csi.refvol.dev:vol-b rw,size=64k
42 40 0:42 / /var/lib/kubelet/pods/a/mount ro shared:3 - tmpfs csi.refvol.dev:vol-a rw
43 42 0:43 / /var/lib/kubelet/pods/a/mount ro shared:4 - tmpfs csi.refvol.dev:vol-a rw
44 40 0:44 / /var/lib/kubelet/pods/c\040d/mount ro - tmpfs csi.refvol.dev:vol-c rw
45 40 0:45 / /var/lib/kubelet/pods/other/mount ro - tmpfs csi.refvol.dev2:vol-d rw
46 40 0:46 / /var/lib/kubelet/pods/token/mount rw - tmpfs tmpfs rw
47 40 0:47 /sub /var/lib/kubelet/pods/part/mount ro - tmpfs csi.refvol.dev:vol-e rw
48 40 0:48 / /var/lib/kubelet/pods/ext4/mount ro - ext4 csi.refvol.dev:vol-f rw
49 22 0:49 / /var/lib/kubelet2/pods/g/mount ro - tmpfs csi.refvol.dev:vol-g rw
50 40 0:50 / /var/lib/kubelet/pods/noid/mount ro - tmpfs csi.refvol.dev: rw
51 22 0:51 / /var/lib/kubelet ro - tmpfs csi.refvol.dev:vol-h rw
`

func TestOurs(t *testing.T) {
	for name, tc := range map[string]struct{ kubeletDir, realDir, prefix string }{
		"plain":                  {"/var/lib/kubelet", "/var/lib/kubelet", "/var/lib/kubelet"},
		"through symbolic links": {"/kubelet", "/var/lib/kubelet", "/kubelet"},
	} {
		t.Run(name, func(t *testing.T) {
			m := &Mounter{driver: "csi.refvol.dev", kubeletDir: tc.kubeletDir}
			table := parseTable(exampleTable)
			if table.unreadable != 0 {
				t.Fatalf("%d lines are unreadable", table.unreadable)
			}
			want := []Mounted{
				{"vol-a", tc.prefix + "/pods/a/mount"},
				{"vol-b", tc.prefix + "/pods/b/mount"},
				{"vol-c", tc.prefix + "/pods/c d/mount"},
			}
			if got := m.ours(table.tmpfs, tc.realDir); !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}

// Other programs choose names and options of their mounts: whatever the table says of those,
// the volumes before and after are found, and no such line passes for a volume.
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
