package mount

import (
	"errors"
	"testing"
)

func TestCheckShared(t *testing.T) {
	for name, tc := range map[string]struct {
		line      string
		notShared bool
		text      string
	}{
		"shared":              {"41 40 0:41 / /k/pods rw shared:2 - ext4 /dev/vda rw", false, ""},
		"shared and receives": {"41 40 0:41 / /k/pods rw master:1 shared:2 - ext4 /dev/vda rw", false, ""},
		"receives only":       {"41 40 0:41 / /k/pods rw master:1 - ext4 /dev/vda rw", true, "set mountPropagation: Bidirectional"},
		"private":             {"41 40 0:41 / /k/pods rw - ext4 /dev/vda rw", true, "set mountPropagation: Bidirectional"},
		"an option":           {"41 40 0:41 / /k/pods rw - ext4 shared:1 rw,shared:1", true, "set mountPropagation: Bidirectional"},
		"among options":       {"41 40 0:41 / /k/pods rw - fuse x rw,a shared:1 - ext4 rw", true, "set mountPropagation: Bidirectional"},
		"another mount":       {"42 40 0:41 / /k/pods rw shared:2 - ext4 /dev/vda rw", false, "the mount is not in it"},
		"negative id":         {"-41 40 0:41 / /k/pods rw shared:2 - ext4 /dev/vda rw", false, "the mount is not in it"},
		"not a table":         {"41", false, "read the mount table"},
	} {
		t.Run(name, func(t *testing.T) {
			const around = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
			table := parseTable(around + tc.line + "\n")
			err := checkShared(table.shared, 41)
			if tc.text == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			checkText(t, err, tc.text)
			if errors.Is(err, ErrNotShared) != tc.notShared {
				t.Errorf("%v: is ErrNotShared %t, want %t", err, !tc.notShared, tc.notShared)
			}
		})
	}
}
