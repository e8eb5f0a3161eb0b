package publisher

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// New names each option that it can't use.
func TestOptionsThatAreRefused(t *testing.T) {
	whole := newEnv(t, nil).opts
	if _, err := New(whole); err != nil {
		t.Fatal(err)
	}
	for want, spoil := range map[string]func(*Options){
		"ResyncInterval: Invalid value: 0s: must be positive":                                 func(o *Options) { o.ResyncInterval = 0 },
		"PublishWait: Invalid value: -1ns: must not be negative":                              func(o *Options) { o.PublishWait = -1 },
		"MaxVolumeSize: Invalid value: 0: must be positive":                                   func(o *Options) { o.MaxVolumeSize = 0 },
		"MaxTotalSize: Invalid value: 1048575: must not be less than MaxVolumeSize (1048576)": func(o *Options) { o.MaxTotalSize = mebibyte - 1 },
		`KubeletDir: Invalid value: "lib/kubelet": must be an absolute path`:                  func(o *Options) { o.KubeletDir = "lib/kubelet" },
		"Driver: Required value":   func(o *Options) { o.Driver = "" },
		"NodeName: Required value": func(o *Options) { o.NodeName = "" },
	} {
		opts := whole
		spoil(&opts)
		if _, err := New(opts); err == nil || err.Error() != "publisher options: "+want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// TestDocumentedLimits: docs/limits.md has the right numbers for superseded files.
func TestDocumentedLimits(t *testing.T) {
	text, err := os.ReadFile("../../docs/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	plain := strings.Join(strings.Fields(string(text)), " ")
	if want := fmt.Sprintf("less where there is no room | %v to %v s |", pruneTime.Seconds(), 3*pruneTime.Seconds()); !strings.Contains(plain, want) {
		t.Errorf("docs/limits.md doesn't say %q", want)
	}
}
