package mount

import (
	"slices"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
)

// A mount table as the kernel writes it; an empty source leaves two spaces, and
// spaces in names are octal.
const mountTable = `22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
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
			infos, err := mountinfo.GetMountsFromReader(strings.NewReader(mountTable), wholeTmpfs)
			if err != nil {
				t.Fatal(err)
			}
			want := []Mounted{
				{"vol-a", tc.prefix + "/pods/a/mount"},
				{"vol-b", tc.prefix + "/pods/b/mount"},
				{"vol-c", tc.prefix + "/pods/c d/mount"},
			}
			if got := m.ours(infos, tc.realDir); !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}
