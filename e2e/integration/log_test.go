package integration

import (
	"bytes"
	"os"
	"testing"
)

// TestLogTellsAllButValues makes sure that the search for values that every test
// ends with is done on a log that really has everything: the plugin's own lines and
// those of its client.
func TestLogTellsAllButValues(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		t.Run(format, func(t *testing.T) {
			n := newNode(t, "--logging-format="+format)
			n.secret("db", map[string]string{"key": n.canary()})
			n.configMap("app", map[string]string{"other": n.canary()})
			v := n.volume(map[string]string{"sources": "- secret: {name: db}\n- configMap: {name: app}\n"})
			req := n.PublishRequest(v)
			req.VolumeContext["csi.storage.k8s.io/serviceAccount.tokens"] = n.canary()
			req.Secrets = map[string]string{"csi.storage.k8s.io/serviceAccount.tokens": n.canary()}
			req.PublishContext = map[string]string{"anything": n.canary()}
			if err := n.Prepare(v); err != nil {
				t.Fatal(err)
			}
			if _, err := n.Node().NodePublishVolume(t.Context(), req); err != nil {
				t.Fatal(err)
			}
			n.mustUnpublish(v)
			log, err := os.ReadFile(n.LogPath())
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{"NodePublishVolume", v.ID(), "CSI call begins", "Listing and watching"} {
				if !bytes.Contains(log, []byte(want)) {
					t.Errorf("the log lacks %q: is it at -v=10?", want)
				}
			}
		})
	}
}
