package deploy

import (
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/strvals"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/refvol/refvol/internal/doclines"
)

// TestNetworkPolicyAddresses renders both ways in which docs/install.md names the API server's addresses: the plugin's pod
// reaches these, and without them any.
func TestNetworkPolicyAddresses(t *testing.T) {
	text := documents(t)["docs/install.md"]
	set := regexp.MustCompile(`--set '(networkPolicy\.addresses=[^']+)'`).FindStringSubmatch(text)
	blocks := doclines.Blocks(text, "yaml")
	patch := slices.IndexFunc(blocks, func(block string) bool { return strings.HasPrefix(block, "patches:\n- target: {kind: NetworkPolicy, ") })
	if set == nil || patch < 0 {
		t.Fatal("docs/install.md does not say how")
	}
	want := []networkingv1.NetworkPolicyPeer{
		{IPBlock: &networkingv1.IPBlock{CIDR: "10.96.0.1/32"}}, {IPBlock: &networkingv1.IPBlock{CIDR: "192.0.2.10/32"}},
	}
	overrides := values{"networkPolicy": values{"enabled": true}}
	for _, want := range [][]networkingv1.NetworkPolicyPeer{nil, want} {
		egress := only[*networkingv1.NetworkPolicy](t, chartObjects(t, newest, overrides)).Spec.Egress
		if len(egress) != 1 || !reflect.DeepEqual(egress[0].To, want) || len(egress[0].Ports) != 2 {
			t.Errorf("with %v the egress is %s, want it to %s", overrides, asJSON(t, egress), asJSON(t, want))
		}
		if err := strvals.ParseInto(set[1], overrides); err != nil {
			t.Fatal(err)
		}
	}
	dir := kustomization(t, []string{"network-policy"}, blocks[patch])
	egress := only[*networkingv1.NetworkPolicy](t, render(t, dir)).Spec.Egress
	if len(egress) != 1 || !reflect.DeepEqual(egress[0].To, want) || len(egress[0].Ports) != 2 {
		t.Errorf("with the patch the egress is %s, want it to %s", asJSON(t, egress), asJSON(t, want))
	}
}
