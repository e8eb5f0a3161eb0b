package integration

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/refvol/refvol/e2e/tools/faultproxy"
	"github.com/refvol/refvol/e2e/tools/harness"
)

// withdrawn is how long after a right was taken away a file may stay, with a resync each
// second: two and a half resyncs and the confirmation. It is generous: what this replaces
// took an hour.
const withdrawn = time.Minute

// TestRevokedWhileSecretsCannotBeRead restarts the plugin while the API server reads no
// Secrets, as when its KMS is down, and does not know the pod: what was revoked goes all the
// same, by what the volume itself tells, and nothing else does.
func TestRevokedWhileSecretsCannotBeRead(t *testing.T) {
	t.Parallel()
	p := newProxiedAs(t, componentAccount(t, "cross-namespace"), "--cross-namespace", "--resync-interval=1s")
	n := p.node
	n.source = newNamespace(t)
	own, plain, revoked := n.canary(), n.canary()+"$(ACROSS)", n.canary()
	n.secret("own", map[string]string{"key": own})
	n.configMap("own", map[string]string{"key": plain})
	n.put("secret", "across", revoked)
	n.put("configMap", "across", n.canary())
	revoke := n.consent()
	v := n.volume(map[string]string{"writeStrategy": "InPlace", "sources": fmt.Sprintf(`
- secret: {name: own, items: [{key: key, path: own}]}
- configMap: {name: own, items: [{key: key, path: deep/own}]}
- secret: {name: across, namespace: %[1]s, items: [{key: key, path: across}]}
- env: {path: own.env, env: [{name: OWN, valueFrom: {secretKeyRef: {name: own, key: key}}}]}
- env: {path: mixed.env, envFrom: [{configMapRef: {name: across, namespace: %[1]s}}, {secretRef: {name: own}}]}
- expand: {path: expanded, configMap: {name: own, key: key}, env: [{name: ACROSS, valueFrom: {secretKeyRef: {name: across, key: key, namespace: %[1]s}}}]}
`, n.source)})
	v.ServiceAccount = "web"
	n.publishes(v, soon)
	n.wantContent(v, "across", revoked)
	n.wantContent(v, "expanded", strings.Replace(plain, "$(ACROSS)", revoked, 1))

	n.mustKill()
	p.proxy.InjectFor(faultproxy.ServerError, "/secrets")
	n.forgetPod(v)
	n.mustStart()
	n.mustPublish(v)
	revoke()
	for _, path := range []string{"across", "mixed.env", "expanded"} {
		n.loses(v, path, withdrawn)
	}
	n.wantContent(v, "own", own)
	n.wantContent(v, "deep/own", plain)
	n.wantContent(v, "own.env", "OWN="+own+"\n")
	n.hasCondition(v, fmt.Sprintf(`may not get Secret "%s/across"`, n.source))
	n.wantGone(v, revoked)

	// The rest comes back once it can be read.
	p.heal()
	n.arrives(v, "mixed.env", "key="+own+"\n", withdrawn)
	n.wantGone(v, revoked)
	n.mustUnpublish(v)
	n.wantNothingLeft()
}

// consent lets the account "web" have the objects of the source namespace.
func (n *node) consent() (revoke func()) {
	n.t.Helper()
	var revokes []func()
	for _, kind := range []string{"secret", "configMap"} {
		revokes = append(revokes, allow(n.t, n.source, rule(kind, "get"), account(n.namespace, "web")))
	}
	return func() {
		for _, revoke := range revokes {
			revoke()
		}
	}
}

// loses waits until a file is gone or, of a volume that is written in place, empty.
func (n *node) loses(v *harness.Volume, path string, within time.Duration) {
	n.t.Helper()
	harness.Eventually(n.t, within, func() error {
		if got, err := n.content(v, path); got != "" || err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("%s still holds %d bytes: %w", path, len(got), err)
		}
		return nil
	})
}

// wantGone waits until no file of a volume holds a value, those of earlier generations
// included.
func (n *node) wantGone(v *harness.Volume, value string) {
	n.t.Helper()
	harness.Eventually(n.t, soon, func() error {
		return filepath.WalkDir(n.Target(v), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			data, err := os.ReadFile(path)
			if err == nil && strings.Contains(string(data), value) {
				err = fmt.Errorf("%s holds what was revoked", path)
			}
			return err
		})
	})
}
