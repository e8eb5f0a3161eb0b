package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"github.com/refvol/refvol/pkg/pod"
	"github.com/refvol/refvol/pkg/volume"
)

// Options are the options of New. Driver and Namespace are required.
type Options struct {
	// Driver is the name of the CSI driver whose volumes are validated.
	Driver string
	// Namespace is used for manifests that name none.
	Namespace string
	// PodVerbs are the rights that a pod's service account needs to every object that a volume shows, as with --identity=pod. It is empty
	// if the plugins read with other rights.
	PodVerbs []string
	// NodeIdentity means that the plugins run with --identity=node: a volume shows only what the pod's spec itself names.
	NodeIdentity bool
	// AnyIdentity means that the plugins' --identity isn't known. What one of the modes would refuse is then a warning.
	AnyIdentity bool
	// Cluster answers questions about each reference. If it is nil, none are asked.
	Cluster Cluster
}

// Checker collects a Report. It is not safe for concurrent use.
type Checker struct {
	opts    Options
	decoder runtime.Decoder
	report  *Report
	// objects and rights have the earlier answers of the cluster.
	objects map[volume.Ref]Object
	rights  map[right]Answer
}

// New returns a Checker with an empty report. It fails if a required option is missing.
func New(o Options) (*Checker, error) {
	if o.Driver == "" || o.Namespace == "" {
		return nil, errors.New("check: a driver and a namespace are required")
	}
	scheme := runtime.NewScheme()
	types := runtime.NewSchemeBuilder(corev1.AddToScheme, appsv1.AddToScheme, batchv1.AddToScheme)
	if err := types.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("check: register the types of the API: %w", err)
	}
	return &Checker{
		opts:    o,
		decoder: serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer(),
		report:  newReport(o.Driver, o.Cluster != nil),
		objects: map[volume.Ref]Object{}, rights: map[right]Answer{},
	}, nil
}

// Report returns the results so far. The caller must not change them.
func (c *Checker) Report() *Report { return c.report }

// Add checks all manifests of one file and adds the results to the report. name is the file's name in the report. The error is about a file
// that cannot be read, or a cluster that does not answer, never about the contents of a manifest.
func (c *Checker) Add(ctx context.Context, name string, r io.Reader) error {
	manifests, err := readManifests(name, r)
	if err != nil {
		return err
	}
	if len(manifests) == 0 {
		c.problem(Location{File: name}, "", "holds no manifest")
	}
	for i := range manifests {
		if err := c.manifest(ctx, &manifests[i]); err != nil {
			return err
		}
	}
	return nil
}

func (c *Checker) manifest(ctx context.Context, m *manifest) error {
	if m.problem != "" {
		c.problem(m.Location, "", m.problem)
		return nil
	}
	if !m.hasPods {
		template, ok := foreignTemplate(m)
		if !ok {
			c.report.PassedOver = append(c.report.PassedOver, m.Location)
			return nil
		}
		m.Namespace, template.text = cmp.Or(m.Namespace, c.opts.Namespace), m.text
		return c.workload(ctx, m.Location, template)
	}
	m.Namespace = cmp.Or(m.Namespace, c.opts.Namespace)
	object, problems := m.decode(c.decoder)
	for _, problem := range problems {
		c.problem(m.Location, "", problem)
	}
	if object == nil {
		return nil
	}
	template, ok := templateOf(object)
	if !ok {
		c.problem(m.Location, "", "has no pod template")
		return nil
	}
	template.text = m.text
	return c.workload(ctx, m.Location, template)
}

func (c *Checker) workload(ctx context.Context, at Location, template podTemplate) error {
	w := Workload{Location: at, ServiceAccount: serviceAccount(template.spec), References: []Reference{}}
	pod.VisitObjectRefs(template.spec, template.at, func(r pod.Reference) {
		w.add(Reference{
			Field: r.Field, Kind: string(r.Kind), Namespace: at.Namespace, Name: r.Name,
			Keys: r.Keys, Optional: r.Optional, env: r.Env,
		})
	})
	volumes := c.volumes(&w, template)
	c.nativeModes(at, template)
	c.restartRules(at, template)
	if c.opts.NodeIdentity || c.opts.AnyIdentity {
		c.checkUnnamed(&w)
	}
	if c.opts.Cluster != nil {
		if err := c.setAnswers(ctx, &w); err != nil {
			return err
		}
		if err := c.texts(ctx, w.Location, volumes); err != nil {
			return err
		}
		c.sets(w.Location, volumes)
	}
	for _, v := range volumes {
		c.subPaths(w.Location, template, v)
	}
	c.report.Workloads = append(c.report.Workloads, w)
	return nil
}

// add adds a reference, with the values that JSON must always have.
func (w *Workload) add(r Reference) {
	if r.Keys == nil {
		r.Keys = []string{}
	}
	r.MissingKeys = []string{}
	r.Exists, r.MayGet = Unknown, Unknown
	w.References = append(w.References, r)
}

// serviceAccount returns the account that the API server assigns to a pod.
func serviceAccount(spec *corev1.PodSpec) string {
	return cmp.Or(spec.ServiceAccountName, spec.DeprecatedServiceAccount, "default")
}

func (c *Checker) problem(at Location, field, message string) {
	c.report.Problems = append(c.report.Problems, Issue{at, field, message})
}

func (c *Checker) warning(at Location, field, message string) {
	c.report.Warnings = append(c.report.Warnings, Issue{at, field, message})
}
