package mount

import (
	"strings"
	"testing"
)

func TestOptionsValidate(t *testing.T) {
	for name, tc := range map[string]struct {
		opts Options
		want string // a part of the error's text, or "" for none
	}{
		"valid":              {Options{Driver: "csi.refvol.dev", KubeletDir: "/var/lib/kubelet"}, ""},
		"longest driver":     {Options{Driver: strings.Repeat("d", 63), KubeletDir: "/k"}, ""},
		"no driver":          {Options{KubeletDir: "/k"}, "Driver: Invalid value"},
		"driver too long":    {Options{Driver: strings.Repeat("d", 64), KubeletDir: "/k"}, "Driver: Invalid value"},
		"driver with colon":  {Options{Driver: "csi:refvol", KubeletDir: "/k"}, "Driver: Invalid value"},
		"driver with dot":    {Options{Driver: ".dev", KubeletDir: "/k"}, "Driver: Invalid value"},
		"relative directory": {Options{Driver: "d", KubeletDir: "kubelet"}, "KubeletDir: Invalid value"},
		"no directory":       {Options{Driver: "d"}, "KubeletDir: Invalid value"},
		"NUL in the context": {Options{Driver: "d", KubeletDir: "/k", SELinuxContext: "a\x00b"}, "SELinuxContext: Invalid value"},
	} {
		t.Run(name, func(t *testing.T) { checkText(t, tc.opts.validate(), tc.want) })
	}
}

func checkText(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("got error %v, want none", err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("got error %v, want one with %q", err, want)
	}
}

func TestValidateVolumeID(t *testing.T) {
	for id, want := range map[string]string{
		"csi-0a":                 "",
		strings.Repeat("v", 128): "",
		strings.Repeat("v", 129): "VolumeID: Invalid value",
		"":                       "VolumeID: Invalid value",
		"../x":                   "VolumeID: Invalid value",
		".hidden":                "VolumeID: Invalid value",
		"a/b":                    "VolumeID: Invalid value",
	} {
		checkText(t, ValidateVolumeID(id), want)
	}
}
