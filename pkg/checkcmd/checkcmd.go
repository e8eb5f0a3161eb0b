// Package checkcmd is the command `check` of refvol-plugin and of kubectl refvol.
//
// It owns the command's flags and how it reads files. It must not know what is right or wrong in them.
package checkcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/refvol/refvol/pkg/apiclient"
	"github.com/refvol/refvol/pkg/check"
)

// The values of flags.
const (
	outputText = "text"
	outputJSON = "json"

	identityPlugin = "plugin"
	identityPod    = "pod"
	identityNode   = "node"

	watch = "Watch"
)

// ProblemsError is that the manifests have so many problems. Any other error of the command is that there is no answer.
type ProblemsError int

// Error says how many.
func (n ProblemsError) Error() string {
	if n == 1 {
		return "check: 1 problem"
	}
	return fmt.Sprintf("check: %d problems", int(n))
}

// options are the flags.
type options struct {
	files      []string
	output     string
	namespace  string
	driverName string
	identity   string
	// changeDetection is that of the plugins.
	changeDetection string
	live            bool
	kubeconfig      string
	agent           string
}

// New returns the command. With --live it asks the API server as agent.
func New(agent string) *cobra.Command {
	opts := &options{agent: agent, output: outputText, driverName: "csi.refvol.dev", identity: identityPlugin, changeDetection: watch}
	cmd := &cobra.Command{
		Use:   "check -f FILE",
		Short: "Validate manifests and list the ConfigMaps and Secrets that they reference",
		Long: `Validates the attributes of refvol's volumes in the Pods and pod templates of manifests,
and lists every ConfigMap and Secret that they reference, with the path of the field. With
--live it asks the API server which of these exist and whether the pods' service account may
get them. It changes nothing and prints no value.

Exits with status 0 if all is well, 1 if it finds a problem, and 2 if that is not known: a file can't be
read, the API server does not answer, or the command line is wrong.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return opts.run(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	opts.addFlags(cmd)
	return cmd
}

func (o *options) addFlags(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringArrayVarP(&o.files, "filename", "f", nil, "file of manifests, - for the standard input; may be repeated")
	fs.StringVarP(&o.output, "output", "o", o.output, "text or json")
	fs.StringVarP(&o.namespace, "namespace", "n", o.namespace, "namespace of manifests that name none (default: with --live that of the kubeconfig, else default)")
	fs.StringVar(&o.driverName, "driver-name", o.driverName, "name of the CSI driver, as in the CSIDriver object")
	fs.StringVar(&o.identity, "identity", o.identity, "the --identity of the plugins: with pod, the service account needs a right to whatever its pods' volumes show; with node, the pod's spec must name that itself")
	fs.StringVar(&o.changeDetection, "change-detection", o.changeDetection, "the --change-detection of the plugins: with --identity=pod, Watch takes the rights get, list and watch, Cache and Get take get only")
	fs.BoolVar(&o.live, "live", o.live, "ask the API server which objects exist and who may get them")
	fs.StringVar(&o.kubeconfig, "kubeconfig", o.kubeconfig, "kubeconfig file for --live (default: $KUBECONFIG, or ~/.kube/config)")
}

func (o *options) validate() error {
	detections := []string{watch, "Cache", "Get"}
	switch {
	case len(o.files) == 0:
		return errors.New("-f: name a file of manifests, or - for the standard input")
	case o.output != outputText && o.output != outputJSON:
		return fmt.Errorf("--output: %q is neither %s nor %s", o.output, outputText, outputJSON)
	case o.identity != identityPlugin && o.identity != identityPod && o.identity != identityNode:
		return fmt.Errorf("--identity: %q is none of %s, %s and %s", o.identity, identityPlugin, identityPod, identityNode)
	case !slices.Contains(detections, o.changeDetection):
		return fmt.Errorf("--change-detection: %q is none of %s", o.changeDetection, strings.Join(detections, ", "))
	case o.driverName == "":
		return errors.New("--driver-name must not be empty")
	case o.kubeconfig != "" && !o.live:
		return errors.New("--kubeconfig is for --live only")
	}
	return nil
}

// run checks all files, prints the report, and fails if it has a problem.
func (o *options) run(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	report, err := o.report(ctx, stdin)
	if err == nil {
		err = o.print(stdout, report)
	}
	if err == nil && len(report.Problems) > 0 {
		return ProblemsError(len(report.Problems))
	}
	return err
}

// report checks all files.
func (o *options) report(ctx context.Context, stdin io.Reader) (*check.Report, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	checker, err := o.checker()
	if err != nil {
		return nil, err
	}
	for _, name := range o.files {
		if err := addFile(ctx, checker, name, stdin); err != nil {
			return nil, err
		}
	}
	return checker.Report(), nil
}

func (o *options) print(stdout io.Writer, report *check.Report) error {
	write := report.WriteText
	if o.output == outputJSON {
		write = report.WriteJSON
	}
	if err := write(stdout); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

// checker makes what the flags ask for.
func (o *options) checker() (*check.Checker, error) {
	opts := check.Options{Driver: o.driverName, Namespace: o.namespace, NodeIdentity: o.identity == identityNode}
	if o.identity == identityPod {
		opts.PodVerbs = []string{"get", "list", "watch"}
		if o.changeDetection != watch {
			opts.PodVerbs = []string{"get"}
		}
	}
	if o.live {
		client, namespace, err := apiclient.ForUser(o.kubeconfig, o.agent)
		if err != nil {
			return nil, err
		}
		opts.Cluster = &check.APIServer{
			ConfigMaps: func(namespace string) check.ConfigMaps { return client.ConfigMaps(namespace) },
			Secrets:    func(namespace string) check.Secrets { return client.Secrets(namespace) },
			Reviews:    client.SubjectAccessReviews(),
		}
		if opts.Namespace == "" {
			opts.Namespace = namespace
		}
	}
	if opts.Namespace == "" {
		opts.Namespace = "default"
	}
	return check.New(opts)
}

// addFile checks one file, or the standard input.
func addFile(ctx context.Context, checker *check.Checker, name string, stdin io.Reader) error {
	if name == "-" {
		return checker.Add(ctx, "standard input", stdin)
	}
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("read manifests: %w", err)
	}
	defer f.Close()
	return checker.Add(ctx, name, f)
}
