package main

import (
	"archive/tar"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Annotations of an index entry from which the importers take the image's name:
// the first is containerd's, the second the image specification's.
const (
	annotationImageName = "io.containerd.image.name"
	annotationRefName   = "org.opencontainers.image.ref.name"
)

// writeArchive writes images under the name reference to a tar archive, and returns the digest of
// what has the name. A file of that name is replaced in one step.
func writeArchive(output string, images []v1.Image, reference string) (v1.Hash, error) {
	if err := os.MkdirAll(filepath.Dir(output), 0o755); err != nil {
		return v1.Hash{}, err
	}
	file, err := os.CreateTemp(filepath.Dir(output), "."+filepath.Base(output)+".*")
	if err != nil {
		return v1.Hash{}, err
	}
	defer os.Remove(file.Name()) // fails after the rename
	defer file.Close()           // fails after the Close below
	digest, err := writeImages(file, images, reference)
	if err != nil {
		return v1.Hash{}, fmt.Errorf("write %s: %w", output, err)
	}
	if err := file.Chmod(0o644); err != nil {
		return v1.Hash{}, err
	}
	if err := file.Close(); err != nil {
		return v1.Hash{}, fmt.Errorf("write %s: %w", output, err)
	}
	return digest, os.Rename(file.Name(), output)
}

// described is what an archive holds under a digest: an image, or the index of several.
type described interface {
	partial.Describable
	RawManifest() ([]byte, error)
}

func writeImages(w io.Writer, images []v1.Image, reference string) (v1.Hash, error) {
	writer := tar.NewWriter(w)
	if err := writeFile(writer, "oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644); err != nil {
		return v1.Hash{}, err
	}
	var named described
	var err error
	if len(images) == 1 {
		named, err = images[0], writeDockerManifest(writer, images[0], reference)
	} else {
		named, err = writeIndex(writer, images)
	}
	if err != nil {
		return v1.Hash{}, err
	}
	layout, err := layoutOf(named, reference)
	if err != nil {
		return v1.Hash{}, err
	}
	if err := writeFile(writer, "index.json", layout, 0o644); err != nil {
		return v1.Hash{}, err
	}
	for _, image := range images {
		if err := writeImage(writer, image); err != nil {
			return v1.Hash{}, err
		}
	}
	digest, err := named.Digest()
	if err != nil {
		return v1.Hash{}, err
	}
	return digest, writer.Close()
}

// writeIndex writes an index of images, one for each platform.
func writeIndex(writer *tar.Writer, images []v1.Image) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, image := range images {
		config, err := image.ConfigFile()
		if err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: config.Platform()}})
	}
	return index, writeManifest(writer, index)
}

// layoutOf returns index.json of the image layout.
func layoutOf(named described, reference string) ([]byte, error) {
	descriptor, err := partial.Descriptor(named)
	if err != nil {
		return nil, err
	}
	tag, err := name.NewTag(reference, name.StrictValidation)
	if err != nil {
		return nil, err
	}
	if image, ok := named.(v1.Image); ok {
		config, err := image.ConfigFile()
		if err != nil {
			return nil, err
		}
		descriptor.Platform = config.Platform()
	}
	// An artifact type marks what is not an image to run.
	descriptor.ArtifactType = ""
	descriptor.Annotations = map[string]string{annotationImageName: reference, annotationRefName: tag.TagStr()}
	return json.Marshal(v1.IndexManifest{
		SchemaVersion: 2,
		MediaType:     types.OCIImageIndex,
		Manifests:     []v1.Descriptor{*descriptor},
	})
}

// writeDockerManifest writes manifest.json, which engines that know no image layout
// read; it names the same blobs.
func writeDockerManifest(writer *tar.Writer, image v1.Image, reference string) error {
	manifest, err := image.Manifest()
	if err != nil {
		return err
	}
	entry := tarball.Descriptor{Config: blobPath(manifest.Config.Digest), RepoTags: []string{reference}}
	for _, layer := range manifest.Layers {
		entry.Layers = append(entry.Layers, blobPath(layer.Digest))
	}
	text, err := json.Marshal(tarball.Manifest{entry})
	if err != nil {
		return err
	}
	return writeFile(writer, "manifest.json", text, 0o644)
}

// writeImage writes an image's manifest, configuration and layers.
func writeImage(writer *tar.Writer, image v1.Image) error {
	if err := writeManifest(writer, image); err != nil {
		return err
	}
	config, err := partial.ConfigLayer(image)
	if err != nil {
		return err
	}
	layers, err := image.Layers()
	if err != nil {
		return err
	}
	for _, layer := range append([]v1.Layer{config}, layers...) {
		if err := writeBlob(writer, layer); err != nil {
			return err
		}
	}
	return nil
}

func writeManifest(writer *tar.Writer, of described) error {
	digest, err := of.Digest()
	if err != nil {
		return err
	}
	manifest, err := of.RawManifest()
	if err != nil {
		return err
	}
	return writeFile(writer, blobPath(digest), manifest, 0o644)
}

func writeBlob(writer *tar.Writer, layer v1.Layer) error {
	digest, err := layer.Digest()
	if err != nil {
		return err
	}
	stream, err := layer.Compressed()
	if err != nil {
		return err
	}
	defer stream.Close()
	content, err := io.ReadAll(stream)
	if err != nil {
		return err
	}
	return writeFile(writer, blobPath(digest), content, 0o644)
}

func blobPath(digest v1.Hash) string { return "blobs/" + digest.Algorithm + "/" + digest.Hex }
