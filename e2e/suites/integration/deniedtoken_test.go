package integration

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/refvol/refvol/e2e/tools/faultproxy"
	"github.com/refvol/refvol/e2e/tools/harness"
)

// longestBackoff is more than the longest time between two requests that are refused, and
// what else it takes until an object is current.
const longestBackoff = 90 * time.Second

// withTokenFile returns a kubeconfig that names a file with the token of another one, as a
// pod's service account does, and that file.
func withTokenFile(t *testing.T, kubeconfig string) (path, tokenFile string) {
	t.Helper()
	config, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	path, tokenFile = filepath.Join(t.TempDir(), "kubeconfig"), filepath.Join(t.TempDir(), "token")
	user := config.AuthInfos[config.Contexts[config.CurrentContext].AuthInfo]
	writeToken(t, tokenFile, user.Token)
	user.Token, user.TokenFile = "", tokenFile
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path, tokenFile
}

func writeToken(t *testing.T, path, token string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
}

// recreateAccount deletes an account of the plugin and creates it again, so that its tokens
// are refused, and returns a token of the new one.
func recreateAccount(t *testing.T, name string) (token string) {
	t.Helper()
	accounts := shared.Client().CoreV1().ServiceAccounts(pluginNamespace)
	if err := accounts.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	token, err := shared.ServiceAccountToken(t.Context(), pluginNamespace, name, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// awaitUnauthorized waits until the API server refuses the token of a kubeconfig: it remembers
// for some seconds that it took a token.
func awaitUnauthorized(t *testing.T, kubeconfig string) {
	t.Helper()
	client := clientOf(t, kubeconfig)
	harness.Eventually(t, soon, func() error {
		asked := &authorizationv1.ResourceAttributes{Verb: "get", Resource: "nodes"}
		if err := allowed(t.Context(), client, asked); !apierrors.IsUnauthorized(err) {
			return fmt.Errorf("the API server answers %v, want that it is unauthorized", err)
		}
		return nil
	})
}

// hasProblem waits until a volume's condition has a text.
func (n *node) hasProblem(v *harness.Volume, text string, within time.Duration) {
	n.t.Helper()
	harness.Eventually(n.t, within, func() error {
		if problem := n.problem(v); !strings.Contains(problem, text) {
			return fmt.Errorf("the condition is %q, want %q in it", problem, text)
		}
		return nil
	})
}

// A plugin whose account was deleted and created again has a token that the API server
// refuses. Its volumes say so, also after a restart, keep their files, and go on when the
// kubelet has brought another token.
func TestThePluginsAccountIsRecreated(t *testing.T) {
	const text = "the API server accepts no token that it was asked with: the API server answered 401 Unauthorized"
	t.Parallel()
	for _, strategy := range harness.Scaled([]string{"Watch"}, []string{"Watch", "Get"}) {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			account := uniqueName("recreated-" + strings.ToLower(strategy))
			rights := scopedAccount(t, account)
			proxy, kubeconfig := startProxy(t, rights, faultproxy.Options{})
			kubeconfig, tokenFile := withTokenFile(t, kubeconfig)
			// At a higher verbosity client-go traces connections, with a data race when one is
			// dialled that a request no longer waits for.
			n := newNodeAs(t, kubeconfig, "-v=4", "--change-detection="+strategy, "--resync-interval="+askingResync.String())
			n.allowReading(account)
			value := n.canary()
			n.secret("db", map[string]string{"key": value})
			v := n.volume(map[string]string{"secret": "db"})
			n.publishesSoon(v)

			token := recreateAccount(t, account)
			awaitUnauthorized(t, rights)
			proxy.ResetConnections() // an open watch outlives the token
			unseen := n.canary()
			n.secret("db", map[string]string{"key": unseen})
			n.hasProblem(v, text, time.Minute)
			n.wantContent(v, "key", value)
			wantStatus(t, n.Publish(t.Context(), n.volume(map[string]string{"secret": "db"})), codes.PermissionDenied, "Unauthorized")
			n.mustPublish(v) // as the kubelet does after its own restart

			n.mustKill()
			n.mustStart()
			harness.Eventually(t, time.Minute, func() error {
				for line := range bytes.Lines(n.log()) {
					if bytes.Contains(line, []byte("A mounted volume is not updated")) && bytes.Contains(line, []byte("Unauthorized")) {
						return nil
					}
				}
				return errors.New("the log does not say why")
			})
			n.wantContent(v, "key", value)

			writeToken(t, tokenFile, token)
			n.arrives(v, "key", unseen, longestBackoff)
			n.hasCondition(v, "")
			n.mustUnpublish(v)
			n.wantNothingLeft()
		})
	}
}

// An object that may be listed and not watched is shown as of the last list. The volume says
// so, and no watch is asked for more often than the object is listed.
func TestListWithoutWatch(t *testing.T) {
	t.Parallel()
	account := uniqueName("list-only")
	n := newProxiedAs(t, scopedAccount(t, account), faultproxy.Options{})
	forbid := n.allow(account, "get", "list")
	n.secret("db", map[string]string{"key": n.canary()})
	v := n.volume(map[string]string{"secret": "db"})
	n.publishesSoon(v)
	n.hasProblem(v, `cannot watch resource "secrets"`, time.Minute)
	n.hasEvent(v, "RefForbidden", "cannot watch")

	n.forgetRequests()
	value := n.canary()
	n.secret("db", map[string]string{"key": value})
	n.arrives(v, "key", value, longestBackoff)
	count := map[string]int{}
	for _, r := range n.requests() {
		count[r.Verb]++
	}
	if count["WATCH"] > count["LIST"]+1 {
		t.Errorf("requests: %v, want one watch for each list", count)
	}

	forbid()
	n.allowReading(account)
	value = n.canary()
	n.secret("db", map[string]string{"key": value})
	n.arrives(v, "key", value, longestBackoff)
	n.hasCondition(v, "")
	if events := n.eventsOf(v, "RefForbidden"); len(events) != 1 || events[0].Count != 1 {
		t.Errorf("%d events, or one counted more than once; want one", len(events))
	}
	n.mustUnpublish(v)
	n.wantNothingLeft()
}
