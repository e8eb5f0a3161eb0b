package mount

import (
	"io/fs"
	"math"
	"strings"
	"testing"

	"github.com/refvol/refvol/pkg/volume"
)

func TestOptionsValidate(t *testing.T) {
	for name, tc := range map[string]struct {
		opts Options
		want string // a part of the error's text; "" for none
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

func TestParamsValidate(t *testing.T) {
	valid := Params{VolumeID: "csi-0a", Size: 1, Inodes: 1, Mode: 0o755, UID: volume.NoOwner, GID: volume.NoOwner}
	for name, tc := range map[string]struct {
		change func(*Params)
		want   string
	}{
		"valid":               {func(p *Params) {}, ""},
		"longest id":          {func(p *Params) { p.VolumeID = strings.Repeat("a", 128) }, ""},
		"id with all marks":   {func(p *Params) { p.VolumeID = "A.b_c-9" }, ""},
		"root":                {func(p *Params) { p.UID, p.GID = 0, 0 }, ""},
		"setgid":              {func(p *Params) { p.Mode = 0o550 | fs.ModeSetgid }, ""},
		"greatest owner":      {func(p *Params) { p.UID = math.MaxUint32 - 1 }, ""},
		"no id":               {func(p *Params) { p.VolumeID = "" }, "VolumeID: Invalid value"},
		"id too long":         {func(p *Params) { p.VolumeID = strings.Repeat("a", 129) }, "VolumeID: Invalid value"},
		"id with a slash":     {func(p *Params) { p.VolumeID = "a/b" }, "VolumeID: Invalid value"},
		"id is dots":          {func(p *Params) { p.VolumeID = ".." }, "VolumeID: Invalid value"},
		"id with a dash":      {func(p *Params) { p.VolumeID = "-a" }, "VolumeID: Invalid value"},
		"id with a colon":     {func(p *Params) { p.VolumeID = "a:b" }, "VolumeID: Invalid value"},
		"id with a comma":     {func(p *Params) { p.VolumeID = "a,size=1g" }, "VolumeID: Invalid value"},
		"id with a newline":   {func(p *Params) { p.VolumeID = "a\n" }, "VolumeID: Invalid value"},
		"id not ASCII":        {func(p *Params) { p.VolumeID = "é" }, "VolumeID: Invalid value"},
		"no size":             {func(p *Params) { p.Size = 0 }, "Size: Invalid value: 0"},
		"negative size":       {func(p *Params) { p.Size = -1 }, "Size: Invalid value: -1"},
		"no inodes":           {func(p *Params) { p.Inodes = 0 }, "Inodes: Invalid value: 0"},
		"no mode":             {func(p *Params) { p.Mode = fs.ModeSetgid }, "Mode: Invalid value"},
		"setuid":              {func(p *Params) { p.Mode = 0o755 | fs.ModeSetuid }, "Mode: Invalid value"},
		"octal, not FileMode": {func(p *Params) { p.Mode = 0o2755 }, "Mode: Invalid value"},
		"negative user":       {func(p *Params) { p.UID = -2 }, "UID: Invalid value: -2"},
		"group too great":     {func(p *Params) { p.GID = math.MaxUint32 }, "GID: Invalid value: 4294967295"},
	} {
		t.Run(name, func(t *testing.T) {
			p := valid
			tc.change(&p)
			checkText(t, p.validate(), tc.want)
		})
	}
}

func TestParamsValidateReportsAll(t *testing.T) {
	err := (&Params{UID: -2, GID: -2}).validate()
	for _, field := range []string{"VolumeID", "Size", "Inodes", "Mode", "UID", "GID"} {
		checkText(t, err, field+": Invalid value")
	}
}

func TestIDInErrorIsBounded(t *testing.T) {
	err := ValidateVolumeID(strings.Repeat("/", 1<<20))
	if err == nil || len(err.Error()) > 400 {
		t.Errorf("got an error of %d bytes, want a short one", len(err.Error()))
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
